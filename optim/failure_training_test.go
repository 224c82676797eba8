package optim_test

func trainingFailings() []*failing { return nil }
