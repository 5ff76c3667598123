package reporttest

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
)

// Decode reads JSON as strictly as an apiserver reads a patch.
func Decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Store is a store in memory that can be made to fail or to hang.
type Store struct {
	Fault

	mu     sync.Mutex // guards values
	values map[string][]byte
}

// NewStore returns an empty store.
func NewStore() *Store { return &Store{values: map[string][]byte{}} }

// Put stores one value.
func (s *Store) Put(key string, value []byte) error { return s.PutAll(map[string][]byte{key: value}) }

// Delete implements report.Store.
func (s *Store) Delete(key string) error { return s.Put(key, nil) }

// PutAll implements report.Store.
func (s *Store) PutAll(values map[string][]byte) error {
	return s.Do(context.Background(), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for key, value := range values {
			if value == nil {
				delete(s.values, key)
			} else {
				s.values[key] = slices.Clone(value)
			}
		}
		return nil
	})
}

// ForEach implements report.Store.
func (s *Store) ForEach(f func(key string, value []byte) error) error {
	s.mu.Lock()
	values := maps.Clone(s.values)
	s.mu.Unlock()
	for key, value := range values {
		if err := f(key, value); err != nil {
			return err
		}
	}
	return nil
}

// Len returns how many values there are.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.values)
}
