// Package store keeps the state of the agent over restarts, in a bbolt file.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Store keeps state over restarts, in buckets of one bbolt file. If the file cannot be used (disk full, read-only root,
// corrupt) the store continues in memory and reports that by Trouble: a bad disk must not end the agent, whose job is
// to report it.
type Store struct {
	path string

	mu     sync.Mutex                   // guards db and memory; held during disk writes, which may hang
	db     *bbolt.DB                    // nil: memory only
	memory map[string]map[string][]byte // values that could not be written

	health  sync.Mutex // guards the fields below; never held during disk access
	trouble error      // error of the last write or open; nil if it succeeded
	writing time.Time  // start of the current write; zero if there is none
}

// ErrInUse means that another agent has the state file open.
var ErrInUse = errors.New("in use by another process")

const checksBucket = "checks"

// Open opens the state file, or creates it. It renames a corrupt file to <path>.corrupt and creates a new one. The only
// error is ErrInUse; Trouble reports all others.
func Open(path string) (*Store, error) {
	s := &Store{path: path, memory: map[string]map[string][]byte{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.trouble = err
		return s, nil //nolint:nilerr // the store works in memory and reports the trouble
	}
	db, err := openSound(path)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: %w", path, ErrInUse)
	}
	if err != nil && isCorrupt(err) {
		s.trouble = fmt.Errorf("%s was corrupt and is kept as %s.corrupt: %w", path, path, err)
		if os.Rename(path, path+".corrupt") == nil {
			db, err = openSound(path)
		}
	}
	if err != nil {
		s.trouble = fmt.Errorf("open %s: %w", path, err)
	}
	s.db = db
	return s, nil
}

type corruptError struct{ err error }

func (e *corruptError) Error() string { return e.err.Error() }

func isCorrupt(err error) bool {
	_, ok := errors.AsType[*corruptError](err)
	return ok || errors.Is(err, bolterrors.ErrInvalid) || errors.Is(err, bolterrors.ErrChecksum) ||
		errors.Is(err, bolterrors.ErrVersionMismatch)
}

// openSound opens a bbolt file after reading all of it. bbolt panics on torn pages, sometimes in its own goroutine, and
// the kernel raises SIGBUS if the file is shorter than its map. The first read, without the free list, happens in this
// goroutine, where both become an error: once, instead of later.
func openSound(path string) (db *bbolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if trouble := recover(); trouble != nil {
			// The map and the descriptor of the corrupt file leak; this is a rare event.
			db, err = nil, &corruptError{fmt.Errorf("%v", trouble)}
		}
	}()
	if info, err := os.Stat(path); err == nil && info.Size() > 0 {
		if err := readAll(path); err != nil {
			return nil, err
		}
	}
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout})
}

// lockTimeout is how long another process may hold the file.
const lockTimeout = 500 * time.Millisecond

func readAll(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(_, _ []byte) error { return nil })
		})
	})
}

// guarded uses the file. bbolt reads it through a mapping, and a page that the disk cannot read raises SIGBUS, which
// would end the agent: guarded turns it into an error, and from then on the store works in memory. The file stays open
// and locked.
func (s *Store) guarded(use func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if trouble := recover(); trouble != nil {
			s.db, err = nil, fmt.Errorf("%s: %v", s.path, trouble)
			s.end(err)
		}
	}()
	return use()
}

// hungAfter is how long a write may take: a healthy disk takes milliseconds, a very busy one a second or two.
const hungAfter = 10 * time.Second

// Trouble returns why the last write or open failed, or that a write hangs; nil if all stored values are safe. It never
// waits for the disk.
func (s *Store) Trouble() error {
	s.health.Lock()
	defer s.health.Unlock()
	if s.writing.IsZero() {
		return s.trouble
	}
	if took := time.Since(s.writing); took > hungAfter {
		return fmt.Errorf("a write to %s has not ended for %s: its disk hangs", s.path, took.Round(time.Second))
	}
	return s.trouble
}

func (s *Store) begin() {
	s.health.Lock()
	defer s.health.Unlock()
	s.writing = time.Now()
}

func (s *Store) end(err error) {
	s.health.Lock()
	defer s.health.Unlock()
	s.writing, s.trouble = time.Time{}, err
}

// Close closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}

// LoadState returns the believed state when the agent last ran. It leaves out a check whose record cannot be read, and
// names it in the error.
func (s *Store) LoadState() (finding.State, error) {
	state := finding.State{}
	var problems []error
	err := s.Bucket(checksBucket).ForEach(func(check string, data []byte) error {
		var c finding.CheckState
		if err := json.Unmarshal(data, &c); err != nil {
			problems = append(problems, fmt.Errorf("stored state of %s: %w", check, err))
			return nil
		}
		state[check] = &c
		return nil
	})
	return state, errors.Join(append(problems, err)...)
}

// SaveCheck stores the believed state of one check; nil removes it.
func (s *Store) SaveCheck(check string, c *finding.CheckState) error {
	return s.SaveChecks(finding.State{check: c})
}

// SaveChecks stores the believed state of some checks; a nil state is removed.
func (s *Store) SaveChecks(state finding.State) error {
	values := map[string][]byte{}
	for check, c := range state {
		if c == nil {
			values[check] = nil
			continue
		}
		data, err := json.Marshal(c)
		if err != nil {
			return fmt.Errorf("encode state of %s: %w", check, err)
		}
		values[check] = data
	}
	return s.Bucket(checksBucket).PutAll(values)
}

// Bucket is a named part of the store: a durable map of small values.
type Bucket struct {
	store *Store
	name  string
}

// Bucket returns a part of the store by name; the first Put creates it.
func (s *Store) Bucket(name string) Bucket { return Bucket{s, name} }

// Put stores a value. On an error the value is still kept in memory.
func (b Bucket) Put(key string, value []byte) error {
	return b.PutAll(map[string][]byte{key: value})
}

// Delete removes a value; it is no error if there is none.
func (b Bucket) Delete(key string) error { return b.PutAll(map[string][]byte{key: nil}) }

// PutAll stores values together: one disk write instead of one for each. A nil value is removed. On an error all are
// kept in memory.
func (b Bucket) PutAll(values map[string][]byte) error {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.db != nil {
		s.begin()
		db := s.db
		err = s.guarded(func() error {
			return db.Update(func(tx *bbolt.Tx) error { return b.write(tx, values) })
		})
		s.end(err)
		if err == nil {
			for key := range values {
				delete(s.memory[b.name], key)
			}
			return nil
		}
		err = fmt.Errorf("store %s/%s: %w", b.name, finding.JoinFirst(slices.Sorted(maps.Keys(values)), 3), err)
	}
	if s.memory[b.name] == nil {
		s.memory[b.name] = map[string][]byte{}
	}
	for key, value := range values {
		s.memory[b.name][key] = slices.Clone(value) // nil: deleted
	}
	return err
}

func (b Bucket) write(tx *bbolt.Tx, values map[string][]byte) error {
	bucket, err := tx.CreateBucketIfNotExists([]byte(b.name))
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] == nil {
			err = bucket.Delete([]byte(key))
		} else {
			err = bucket.Put([]byte(key), values[key])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Get returns a value and whether there is one.
func (b Bucket) Get(key string) ([]byte, bool) {
	var found []byte
	_ = b.ForEach(func(k string, value []byte) error {
		if k == key {
			found = value
		}
		return nil
	})
	return found, found != nil
}

// ForEach calls f with every value, in the order of the keys.
func (b Bucket) ForEach(f func(key string, value []byte) error) error {
	values, err := b.all()
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := f(key, values[key]); err != nil {
			return err
		}
	}
	return nil
}

func (b Bucket) all() (map[string][]byte, error) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	values := map[string][]byte{}
	if s.db != nil {
		db := s.db
		err := s.guarded(func() error {
			return db.View(func(tx *bbolt.Tx) error {
				bucket := tx.Bucket([]byte(b.name))
				if bucket == nil {
					return nil
				}
				return bucket.ForEach(func(k, v []byte) error {
					values[string(k)] = slices.Clone(v)
					return nil
				})
			})
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", b.name, err)
		}
	}
	for key, value := range s.memory[b.name] {
		if value == nil {
			delete(values, key)
		} else {
			values[key] = value
		}
	}
	return values, nil
}
