package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
)

const (
	keysEvery = 10 * time.Minute // interval of reading a cluster's keys
	keysAgain = 10 * time.Second // minimum interval of reading them for a token with an unknown key
	maxKeys   = 100              // of one cluster
)

// keys are a cluster's signing keys. A copy is stored on disk: the apiserver may be away when the program starts.
type keys struct {
	file  string
	fetch func(context.Context) ([]byte, error)
	now   func() time.Time

	asking sync.Mutex // held while asking the apiserver; guards tried
	tried  time.Time

	mu  sync.RWMutex // guards the fields below
	set jose.JSONWebKeySet
}

// newKeys loads the stored keys.
func newKeys(file string, fetch func(context.Context) ([]byte, error), now func() time.Time) (*keys, error) {
	k := &keys{file: file, fetch: fetch, now: now}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, err
	}
	if k.set, err = readKeys(text); err != nil {
		return nil, fmt.Errorf("%s: %w; it can be removed: the apiserver has the keys", file, err)
	}
	return k, nil
}

// readKeys reads a JSON Web Key Set of public keys.
func readKeys(text []byte) (set jose.JSONWebKeySet, err error) {
	if err := json.Unmarshal(text, &set); err != nil {
		return set, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	set.Keys = slices.DeleteFunc(set.Keys, func(k jose.JSONWebKey) bool { return !k.IsPublic() || !k.Valid() })
	if len(set.Keys) == 0 || len(set.Keys) > maxKeys {
		return set, fmt.Errorf("%d public keys, want 1 to %d", len(set.Keys), maxKeys)
	}
	return set, nil
}

// get returns the keys with an ID.
func (k *keys) get(id string) []jose.JSONWebKey {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.set.Key(id)
}

// refresh requests the keys, at most once per wait.
func (k *keys) refresh(ctx context.Context, wait time.Duration) error {
	k.asking.Lock()
	defer k.asking.Unlock()
	if now := k.now(); now.Sub(k.tried) < wait && !now.Before(k.tried) {
		return nil
	}
	k.tried = k.now()
	text, err := k.fetch(ctx)
	if err != nil {
		return err
	}
	set, err := readKeys(text)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.set = set
	k.mu.Unlock()
	return keep(k.file, text)
}

// keep writes a file if its content changes.
func keep(file string, text []byte) error {
	if old, err := os.ReadFile(file); err == nil && slices.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.WriteData(file, text)
}

// run refreshes the keys until ctx ends.
func (k *keys) run(ctx context.Context, log *slog.Logger) {
	for {
		wait := keysEvery + rand.N(keysEvery/10)
		if err := k.refresh(ctx, 0); err != nil && ctx.Err() == nil {
			log.Warn("load or store the keys of the cluster's tokens failed: keeping the previous keys", "err", err)
			wait = keysAgain
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
