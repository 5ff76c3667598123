package oidc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

const (
	askLimit     = 10 * time.Second // for one response of the provider
	answerLimit  = 1 << 20          // bytes of one response
	keepProvider = time.Hour        // how long its endpoints are cached
	awayFor      = 5 * time.Second  // how long a provider that did not answer is not asked again
	maxName      = 128              // bytes of a person's name
)

// RefusedError is why a person may not sign in, in words for that person.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// Refused returns the reason.
func (e *RefusedError) Refused() string { return e.Reason }

func refused(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// Provider is the identity provider.
type Provider struct {
	Settings
	program string
	now     func() time.Time

	flows *flows

	// asked limits requests to the provider for people returning from it, and keys those for its keys: any sender can
	// cause these with a token that has an unknown key.
	asked, keys *rate.Limiter

	mu     sync.Mutex // guards the fields below
	found  *discovered
	failed error
	until  time.Time // end of validity of found or failed
}

// discovered is the provider's metadata.
type discovered struct {
	*oidc.Provider
	keys       oidc.KeySet
	algorithms []string
}

// New returns a provider for a program: the name of its cookie begins with the program's. The first sign-in sends the first request to it.
func New(program string, s Settings, now func() time.Time) (*Provider, error) {
	var key [keyBytes]byte
	_, _ = rand.Read(key[:]) // never fails
	flows, err := newFlows(program, key, now)
	if err != nil {
		return nil, err
	}
	p := &Provider{Settings: s, program: program, now: now, flows: flows, asked: rate.NewLimiter(5, 50), keys: rate.NewLimiter(1, 5)}
	if _, err := p.secret(); err != nil {
		return nil, err
	}
	if _, err := p.client(p.asked); err != nil {
		return nil, err
	}
	return p, nil
}

// Name is the provider's name, for people.
func (p *Provider) Name() string {
	u, err := url.Parse(p.Issuer)
	if err != nil {
		return p.Issuer
	}
	return u.Hostname()
}

func (p *Provider) secret() (string, error) {
	if p.ClientSecretFile == "" {
		return "", nil
	}
	text, err := secretfile.Read(p.ClientSecretFile)
	if err != nil {
		return "", fmt.Errorf("clientSecretFile: %w", err)
	}
	if secret := strings.TrimSpace(string(text)); secret != "" {
		return secret, nil
	}
	return "", fmt.Errorf("clientSecretFile %s: empty", p.ClientSecretFile)
}

// client returns a client that trusts the present CAs, and limits the size of responses.
func (p *Provider) client(asked *rate.Limiter) (*http.Client, error) {
	pool, err := web.Authorities(p.CAFile)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: askLimit, MaxIdleConns: 2,
		IdleConnTimeout: time.Minute, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return &http.Client{Transport: bounded{transport, asked}, Timeout: askLimit}, nil
}

// bounded limits the rate of requests and the size of responses.
type bounded struct {
	http.RoundTripper
	asked *rate.Limiter
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if !b.asked.Allow() {
		return nil, errors.New("too many questions to the identity provider")
	}
	response, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, answerLimit)
	}
	return response, err
}

// discover returns the provider's endpoints and keys, at most an hour old. A provider that did not answer is not asked
// again for some seconds.
func (p *Provider) discover(ctx context.Context) (*discovered, error) {
	p.mu.Lock()
	defer p.mu.Unlock() // concurrent callers wait for the same response
	if now := p.now(); !now.Before(p.until) {
		p.found, p.failed = p.ask(ctx)
		p.until = now.Add(keepProvider)
		if p.failed != nil {
			p.until = p.now().Add(awayFor)
		}
	}
	return p.found, p.failed
}

func (p *Provider) ask(ctx context.Context) (*discovered, error) {
	client, err := p.client(p.asked)
	if err != nil {
		return nil, err
	}
	forKeys, err := p.client(p.keys)
	if err != nil {
		return nil, err
	}
	// Keys are fetched later, with this context's client; a cancelled request must not affect others.
	detached := oidc.ClientContext(context.WithoutCancel(ctx), client)
	found, err := oidc.NewProvider(detached, p.Issuer)
	if err != nil {
		return nil, fmt.Errorf("identity provider %s: %w", p.Issuer, err)
	}
	var metadata struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := found.Claims(&metadata); err != nil {
		return nil, fmt.Errorf("identity provider %s: %w", p.Issuer, err)
	}
	d := &discovered{Provider: found, keys: oidc.NewRemoteKeySet(oidc.ClientContext(detached, forKeys), metadata.Keys)}
	for _, a := range algorithms() {
		if slices.Contains(metadata.Algorithms, string(a)) {
			d.algorithms = append(d.algorithms, string(a))
		}
	}
	if d.algorithms == nil {
		return nil, fmt.Errorf("identity provider %s: signs with %q, of which this program accepts none", p.Issuer,
			metadata.Algorithms)
	}
	return d, nil
}

// algorithms are those of ID tokens: no symmetric ones, and not "none".
func algorithms() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256,
		jose.PS384, jose.PS512, jose.EdDSA}
}

// keySet distinguishes a failure to fetch keys from a wrong signature.
type keySet struct {
	oidc.KeySet
	away error
}

func (k *keySet) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, token)
	if err != nil && strings.HasPrefix(err.Error(), "fetching keys") {
		k.away = err
	}
	return payload, err
}

func (p *Provider) oauth(found *discovered) (*oauth2.Config, error) {
	secret, err := p.secret()
	if err != nil {
		return nil, err
	}
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: secret, Endpoint: found.Endpoint(),
		RedirectURL: strings.TrimSuffix(p.Address, "/") + callback,
		Scopes:      append([]string{oidc.ScopeOpenID, "profile", "email"}, p.Scopes...)}, nil
}

// verify returns an ID token signed by the provider for the program, and its claims. For an unknown key it asks the
// provider.
func (p *Provider) verify(ctx context.Context, raw string) (token *oidc.IDToken, asserted map[string]any, err error) {
	found, err := p.discover(ctx)
	if err != nil {
		return nil, nil, err
	}
	keys := &keySet{KeySet: found.keys}
	token, err = oidc.NewVerifier(p.Issuer, keys, &oidc.Config{ClientID: p.ClientID, Now: p.now,
		SupportedSigningAlgs: found.algorithms}).Verify(ctx, raw)
	if keys.away != nil {
		return nil, nil, fmt.Errorf("identity provider %s: %w", p.Issuer, keys.away)
	}
	if err == nil {
		err = token.Claims(&asserted)
	}
	if err != nil {
		return nil, nil, refused("the identity provider's token is refused: %s", brief(err.Error()))
	}
	return token, asserted, nil
}

// complete adds claims from the provider's userinfo endpoint: if there is an access token, the provider may leave a
// person's claims out of the ID token (OpenID Connect Core 1.0, section 5.4).
func (p *Provider) complete(ctx context.Context, access *oauth2.Token, subject string, asserted map[string]any) error {
	_, named := asserted[p.NameClaim]
	_, grouped := asserted[p.GroupsClaim]
	found, err := p.discover(ctx)
	if err != nil || named && (grouped || len(p.Groups)+len(p.OperatorGroups) == 0) || found.UserInfoEndpoint() == "" {
		return err
	}
	client, err := p.client(p.asked)
	if err != nil {
		return err
	}
	info, err := found.UserInfo(oidc.ClientContext(ctx, client), oauth2.StaticTokenSource(access))
	if err != nil {
		return fmt.Errorf("identity provider %s: userinfo: %w", p.Issuer, err)
	}
	if info.Subject != subject { // section 5.3.2
		return refused("the identity provider tells of somebody else than its token")
	}
	var more map[string]any
	if err := info.Claims(&more); err != nil {
		return fmt.Errorf("identity provider %s: userinfo: %w", p.Issuer, err)
	}
	for claim, value := range more {
		if _, known := asserted[claim]; !known {
			asserted[claim] = value
		}
	}
	return nil
}

// brief limits how much foreign text is repeated.
func brief(text string) string { return event.Brief(text, 300) }

var errState = errors.New("this sign-in was not begun in this browser, or longer than ten minutes ago: begin again")

// Start redirects a browser to the provider. next is the page to open afterwards.
func (p *Provider) Start(w http.ResponseWriter, r *http.Request, next string) error {
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	found, err := p.discover(ctx)
	if err != nil {
		return err
	}
	config, err := p.oauth(found)
	if err != nil {
		return err
	}
	one, cookie, err := p.flows.begin(next, strings.HasPrefix(p.Address, "https:"))
	if err != nil {
		return err
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, config.AuthCodeURL(one.State, oidc.Nonce(one.Nonce), oauth2.S256ChallengeOption(one.Verifier)),
		http.StatusSeeOther)
	return nil
}

// Finish returns the person returning from the provider, whether as an operator, and the page to open. It deletes
// Start's cookie.
func (p *Provider) Finish(w http.ResponseWriter, r *http.Request) (name string, operator bool, next string, err error) {
	one, ok := p.flows.end(w, r, strings.HasPrefix(p.Address, "https:"))
	if !ok {
		return "", false, "", &RefusedError{errState.Error()}
	}
	query := r.URL.Query()
	if problem := query.Get("error"); problem != "" {
		return "", false, "", refused("the identity provider says: %s %s", brief(problem), brief(query.Get("error_description")))
	}
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	access, raw, err := p.exchange(ctx, query.Get("code"), one)
	if err != nil {
		return "", false, "", err
	}
	token, asserted, err := p.verify(ctx, raw)
	if err != nil {
		return "", false, "", err
	}
	if token.Nonce != one.Nonce {
		return "", false, "", refused("the identity provider's token is of another sign-in")
	}
	if err := p.complete(ctx, access, token.Subject, asserted); err != nil {
		return "", false, "", err
	}
	person, err := p.person(asserted)
	if err != nil {
		return "", false, "", err
	}
	return person.Name, person.Operator, one.Next, nil
}

// exchange returns the tokens for a code.
func (p *Provider) exchange(ctx context.Context, code string, one flow) (access *oauth2.Token, raw string, err error) {
	found, err := p.discover(ctx)
	if err != nil {
		return nil, "", err
	}
	config, err := p.oauth(found)
	if err != nil {
		return nil, "", err
	}
	client, err := p.client(p.asked)
	if err != nil {
		return nil, "", err
	}
	access, err = config.Exchange(context.WithValue(ctx, oauth2.HTTPClient, client), code,
		oauth2.VerifierOption(one.Verifier))
	if err != nil {
		if answer, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
			return nil, "", refused("the identity provider does not accept the code: %s %s", brief(answer.ErrorCode),
				brief(answer.ErrorDescription))
		}
		return nil, "", fmt.Errorf("identity provider %s: %w", p.Issuer, err)
	}
	raw, ok := access.Extra("id_token").(string)
	if !ok {
		return nil, "", fmt.Errorf("identity provider %s: its answer has no ID token", p.Issuer)
	}
	return access, raw, nil
}
