"""What a deployment's predictions are worth beside what ``streamfl simulate`` promises, measured on worker
processes."""
