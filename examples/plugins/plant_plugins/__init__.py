"""What a plant adds to streamfl: the format of its records, models, and where its buses are."""
