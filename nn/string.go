package nn

// The String methods of the modules.

// String returns the module's type with its options, in PyTorch's form.
func (m ReLU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m ReLU6) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Sigmoid) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Tanh) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m SiLU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m LogSigmoid) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Identity) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Func) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m GELU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m LeakyReLU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *PReLU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m ELU) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Hardtanh) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Softplus) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Softmax) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m LogSoftmax) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Flatten) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *Dropout) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *Linear) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *Embedding) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *Conv2d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *Conv1d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *ConvTranspose2d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *BatchNorm) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *LayerNorm) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *RMSNorm) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *GroupNorm) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *LSTM) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m *GRU) String() string { return String(m) }

// String returns the module with its output layer, in PyTorch's form.
func (m *MultiheadAttention) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m MaxPool2d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m AvgPool2d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m AdaptiveAvgPool2d) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m Upsample) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m CrossEntropyLoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m NLLLoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m MSELoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m L1Loss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m BCEWithLogitsLoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m SmoothL1Loss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m HuberLoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m BCELoss) String() string { return String(m) }

// String returns the module's type with its options, in PyTorch's form.
func (m KLDivLoss) String() string { return String(m) }

// String returns the modules one below the other, in PyTorch's form.
func (s Sequential) String() string { return String(s) }

// String returns the captured module in PyTorch's form.
func (g *Graphed) String() string { return String(g) }
