"""What travels between ranks: messages, how payloads are put into them, and how averages are formed from them."""
