package detect

// StateStore keeps a little across restarts of the agent. Load answers false when nothing is kept under key.
type StateStore interface {
	Load(key string) ([]byte, bool)
	Save(key string, value []byte)
}
