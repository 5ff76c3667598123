package oidc

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/nodeagent/nodeagent/pkg/web"
)

const maxToken = 16 << 10 // bytes

// Authenticate identifies the sender of a request: a person with the provider's ID token for the program may read; next
// identifies all others.
func (p *Provider) Authenticate(next func(*http.Request) (web.Identity, error)) func(*http.Request) (web.Identity, error) {
	return func(r *http.Request) (web.Identity, error) {
		token, given := web.Bearer(r)
		if !given || !p.ours(token) {
			return next(r)
		}
		ctx, cancel := context.WithTimeout(r.Context(), askLimit)
		defer cancel()
		_, asserted, err := p.verify(ctx, token)
		var person Person
		if err == nil {
			person, err = p.person(asserted)
		}
		if refusal, ok := errors.AsType[*RefusedError](err); ok {
			return web.Identity{}, &web.Refusal{Status: http.StatusUnauthorized, Reason: refusal.Reason}
		}
		if err != nil {
			return web.Identity{}, &web.Refusal{Status: http.StatusServiceUnavailable,
				Reason: "the identity provider cannot be asked now", RetryWithin: 10 * time.Second}
		}
		return web.Identity{Name: person.Name, By: "oidc", Reads: true}, nil
	}
}

// ours reports whether a token claims to be from the provider and for the program. It verifies no signature.
func (p *Provider) ours(token string) bool {
	if len(token) > maxToken {
		return false
	}
	parsed, err := jwt.ParseSigned(token, algorithms())
	if err != nil {
		return false
	}
	var claims jwt.Claims
	return parsed.UnsafeClaimsWithoutVerification(&claims) == nil && claims.Issuer == p.Issuer &&
		claims.Audience.Contains(p.ClientID)
}
