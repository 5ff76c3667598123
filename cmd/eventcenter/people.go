package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/oidc"
)

// people sign in at an identity provider; nil: only with codes.
type people struct{ provider *oidc.Provider }

// openPeople reads the file of the identity provider, if there is one.
func openPeople(name string) (people, error) {
	if name == "" {
		return people{}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return people{}, fmt.Errorf("--oidc: %w", err)
	}
	defer f.Close()
	settings, err := oidc.Read(f)
	if err != nil {
		return people{}, fmt.Errorf("--oidc %s: %w", name, err)
	}
	provider, err := oidc.New(settings, time.Now)
	if err != nil {
		return people{}, fmt.Errorf("--oidc %s: %w", name, err)
	}
	return people{provider}, nil
}

// share makes all replicas with one control store use the same sealing key, so that each can open the others' cookies.
func (p people) share(ctx context.Context, store control.Store) error {
	if p.provider == nil {
		return nil
	}
	const bucket, name = "keys", "sign-in"
	var key [oidc.KeyBytes]byte
	_, _ = rand.Read(key[:]) // never fails
	if _, err := store.Put(ctx, bucket, name, key[:], 0); err != nil && !errors.Is(err, control.ErrConflict) {
		return err
	}
	found, err := store.Get(ctx, bucket, name) // that of the first replica
	if err != nil {
		return err
	}
	if copy(key[:], found.Value) != len(key) {
		return fmt.Errorf("%s/%s: %d bytes, want %d", bucket, name, len(found.Value), len(key))
	}
	return p.provider.UseKey(key)
}

func (p people) signIn() web.SignIn {
	if p.provider == nil {
		return nil
	}
	return p.provider
}

// authenticate identifies people by the provider's ID tokens; next identifies all other senders.
func (p people) authenticate(next func(*http.Request) (web.Identity, error)) func(*http.Request) (web.Identity, error) {
	if p.provider == nil {
		return next
	}
	return p.provider.Authenticate(next)
}
