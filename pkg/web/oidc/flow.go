package oidc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"

	"golang.org/x/oauth2"

	"github.com/nodeagent/nodeagent/pkg/web/share"
)

const (
	// keyBytes is the length of the sealing key.
	keyBytes = 32

	flowLife = 10 * time.Minute
	maxNext  = 1024 // bytes of the page to open afterwards; if longer, the first page
)

// flow is a person on the way to the provider and back. It is stored in a sealed cookie of the browser: the program
// keeps no state, so its memory cannot be filled, and others cannot use this person's return.
type flow struct {
	State    string    `json:"state"`
	Nonce    string    `json:"nonce"`
	Verifier string    `json:"verifier"`
	Next     string    `json:"next"`
	Ends     time.Time `json:"ends"`
}

type flows struct {
	name string // of the cookie
	seal cipher.AEAD
	now  func() time.Time
	ends *share.Rates // per network: each end sends requests to the provider
}

func newFlows(program string, key [keyBytes]byte, now func() time.Time) (*flows, error) {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &flows{name: program + "-sign-in", seal: seal, now: now, ends: share.NewRates(1, 20)}, nil
}

// begin returns a new flow and its cookie.
func (f *flows) begin(next string, secure bool) (flow, *http.Cookie, error) {
	if len(next) > maxNext {
		next = "/"
	}
	one := flow{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Next: next,
		Ends: f.now().Add(flowLife)}
	text, err := json.Marshal(one)
	if err != nil {
		return one, nil, err
	}
	sealed := f.seal.Seal(nil, nil, text, []byte(f.name)) //nolint:gosec // it makes its own random nonce
	value := base64.RawURLEncoding.EncodeToString(sealed)
	return one, f.cookie(value, int(flowLife/time.Second), secure), nil
}

// cookie must be sent when the provider redirects the browser back: SameSite=Strict would prevent that.
func (f *flows) cookie(value string, age int, secure bool) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure, but for a program on loopback, which has no TLS
		Name: f.name, Value: value, Path: "/login", MaxAge: age, HttpOnly: true, Secure: secure,
		SameSite: http.SameSiteLaxMode}
}

// end returns the flow of a returning browser, and deletes its cookie.
func (f *flows) end(w http.ResponseWriter, r *http.Request, secure bool) (one flow, ok bool) {
	cookie, err := r.Cookie(f.name)
	if err != nil {
		return one, false
	}
	http.SetCookie(w, f.cookie("", -1, secure))
	sealed, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return one, false
	}
	text, err := f.seal.Open(nil, nil, sealed, []byte(f.name))
	if err != nil || json.Unmarshal(text, &one) != nil {
		return one, false
	}
	same := subtle.ConstantTimeCompare([]byte(one.State), []byte(r.URL.Query().Get("state"))) == 1
	return one, same && f.now().Before(one.Ends) && f.ends.Take(share.Of(r), f.now(), 1)
}
