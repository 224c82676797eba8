package llama

import (
	"tenon.dev"
	"tenon.dev/internal/gpt2"
)

// NewTraining returns a model with random weights, and a random batch of rows as long as the context. It trains as GPT-2 does.
func NewTraining(x *tenon.Exec, c Config, batch int) (*gpt2.Training, error) {
	return gpt2.Train(x, New(x, c), c.Vocabulary, batch, c.Context)
}
