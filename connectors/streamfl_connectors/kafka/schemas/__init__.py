"""Messages of Kafka's protocol that kafka-python does not have, as Kafka describes them."""
