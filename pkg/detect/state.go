package detect

import "encoding/json"

// StateStore keeps small values across restarts of the agent. Load returns false if there is no value under key.
type StateStore interface {
	Load(key string) ([]byte, bool)
	Save(key string, value []byte)
}

// Saved is a value kept across restarts of the agent, as JSON under one key. Without a store it is not kept.
type Saved[T any] struct {
	Store StateStore // may be nil
	Key   string
}

// Load returns the last saved value, if it can be decoded and usable accepts it: the stored value may be malformed, of
// another boot, or larger than this agent would save.
func (s Saved[T]) Load(usable func(T) bool) (value T, ok bool) {
	if s.Store == nil {
		return value, false
	}
	data, found := s.Store.Load(s.Key)
	if !found {
		return value, false
	}
	var kept T
	if json.Unmarshal(data, &kept) != nil || !usable(kept) {
		return value, false
	}
	return kept, true
}

// Save keeps value. T must be made of strings, numbers, booleans, slices and maps: other values are not kept.
func (s Saved[T]) Save(value T) {
	if s.Store == nil {
		return
	}
	if data, err := json.Marshal(value); err == nil {
		s.Store.Save(s.Key, data)
	}
}
