"""The runs of ``streamfl simulate`` that ``tests/frozen.py`` keeps of VAFL."""

CONFIGURATION = """
[federation]
name = "loans"
seed = 5
parties = ["bank", "shop"]
embedding_size = 1
[role]
kind = "vafl-coordinator"
[embedding]
standardise = false
[learning]
learning_rate = 0.05
{learning}
"""
PHISHING = "--data river:Phishing --label y --split bank=0:4,shop=4:9"
POLLS = "--data river:TrumpApproval --label y --split bank=0:3,shop=3:6"
PRIVATE = """loss = "square"
[privacy]
embedding_norm = 1.0
embedding_noise = 0.5
reply_noise = 0.5
secret_file = "SECRET"
"""
# By name, the settings file and the options.
SIMULATIONS = {
    name: (CONFIGURATION.format(learning=learning), options)
    for name, (learning, options) in {
        "epochs": ('loss = "softmax"\nclasses = 2\n[head]\nkind = "network"', f"{PHISHING} --epochs 1"),
        "online": ('loss = "square"', f"{POLLS} --online --label-delay 20"),
        "private": (PRIVATE, f"{POLLS} --epochs 1 --delays bank=1,shop=3"),
    }.items()
}
