"""The coordinator: entities, the parties it hears, its model, predictions and replies."""
