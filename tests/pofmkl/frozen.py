"""The runs of ``streamfl simulate`` that ``tests/frozen.py`` keeps of POF-MKL."""

CONFIGURATION = """
[federation]
name = "plant"
seed = 3
clients = 5
[role]
kind = "pofmkl-client"
[learning]
{learning}
[uplink]
budget_bytes_per_second = 3000
"""
TRUMP = "--data river:TrumpApproval --label y --rounds 40"
# By name, the settings file and the options.
SIMULATIONS = {
    name: (CONFIGURATION.format(learning=learning), TRUMP)
    for name, learning in {
        "default": "",
        "lockstep": 'staleness = "lockstep"',
        "paper": 'preset = "paper"\nlearning_rate = 0.1',
    }.items()
}
