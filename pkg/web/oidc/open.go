package oidc

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
)

// Open returns the provider that a file of settings configures for a program; nil without a file: people sign in only
// with codes.
func Open(program, name string) (*Provider, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	settings, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p, err := New(program, settings, time.Now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// Beside adds the provider to how a program authenticates requests, and returns where people sign in; nil: only with codes. p may
// be nil: there is no provider.
func (p *Provider) Beside(own func(*http.Request) (web.Identity, error)) (func(*http.Request) (web.Identity, error), web.SignIn) {
	if p == nil {
		return own, nil
	}
	return p.Authenticate(own), p
}

// Share makes all replicas with one control store use the same sealing key, so that people can return from the provider
// to any of them. Call it before the first sign-in.
func (p *Provider) Share(ctx context.Context, store control.Store) error {
	const bucket, name = "keys", "sign-in"
	var key [keyBytes]byte
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
	p.flows, err = newFlows(p.program, key, p.now)
	return err
}
