package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/web/control"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

const (
	codeLife    = 10 * time.Minute
	sessionLife = 12 * time.Hour
	maxCodes    = 100
	maxSessions = 1000
	maxName     = 64 // bytes of a person's name
)

// The buckets of the control store. Their keys are hashes, so that a reader of the store cannot sign in with them.
const (
	codesBucket    = "sign-in-codes" // offer
	sessionsBucket = "sessions"      // Session
)

// Sessions are the signed-in people: on every replica with the same control store, until the session ends.
type Sessions struct {
	store  control.Store
	cookie string // its name
	secure bool   // cookies only over TLS
	now    func() time.Time
	tries  *share.Rates // per network: strangers who guess hinder only themselves
}

// offer is an unused code.
type offer struct {
	Person
	Ends time.Time `json:"ends"`
}

// Person is somebody who signs in.
type Person struct {
	Name string `json:"name"`
	// Operator may act on faults and declare maintenance. False: a reader.
	Operator bool `json:"operator,omitempty"`
	// Cluster and User are given for a user of a cluster, who has the rights of that user. Without, a person reads everything.
	Cluster string `json:"cluster,omitempty"`
	User    *User  `json:"user,omitempty"`
}

// Session is a signed-in person.
type Session struct {
	Person
	Form string    `json:"form"` // token in each form of the session: another site cannot know it
	Ends time.Time `json:"ends"`
}

// Identity returns who reads in a session.
func (s Session) Identity() Identity {
	return Identity{Name: s.Name, Reads: s.User == nil, Cluster: s.Cluster, User: s.User}
}

// NewSessions returns the sessions of a program in a control store. The name of the cookie begins with the program's:
// browsers keep one cookie of a name for all ports of a host. With secure, cookies are sent only over TLS.
func NewSessions(store control.Store, program string, secure bool, now func() time.Time) *Sessions {
	return &Sessions{store: store, cookie: program + "-session", secure: secure, now: now, tries: share.NewRates(1, 20)}
}

var (
	errManyCodes    = errors.New("too many codes wait to be used: try again in some minutes")
	errManySessions = errors.New("too many people are signed in")
	errNoSession    = errors.New("nobody is signed in")
	errManyTries    = errors.New("too many codes were tried")
	errCode         = errors.New("this code is not known, was used, or has ended")
)

// keyOf returns the key of a secret in the store.
func keyOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// keep stores the value of a secret if there is room; expired ones make room.
func (s *Sessions) keep(ctx context.Context, bucket, secret string, value any, most int, full error) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	there, err := s.store.List(ctx, bucket, "")
	if err != nil {
		return err
	}
	for _, r := range there {
		var old struct{ Ends time.Time }
		if json.Unmarshal(r.Value, &old) == nil && s.now().Before(old.Ends) {
			continue
		}
		if err := s.store.Delete(ctx, bucket, r.Key, r.Revision); err != nil && !gone(err) {
			return err
		}
		most++
	}
	if len(there) >= most {
		return full
	}
	_, err = s.store.Put(ctx, bucket, keyOf(secret), data, 0)
	return err
}

// gone reports whether a record was removed or changed by another request.
func gone(err error) bool {
	return errors.Is(err, control.ErrNotFound) || errors.Is(err, control.ErrConflict)
}

// Code returns a code for one sign-in within some minutes.
func (s *Sessions) Code(ctx context.Context, of Person) (code string, ends time.Time, err error) {
	code = strings.ToLower(rand.Text()[:12]) // 60 bits; a network can try one per second
	code = code[:4] + "-" + code[4:8] + "-" + code[8:]
	ends = s.now().Add(codeLife)
	return code, ends, s.keep(ctx, codesBucket, code, offer{of, ends}, maxCodes, errManyCodes)
}

// SignInCode is the response to POST /v1/sign-in-codes.
type SignInCode struct {
	Code string    `json:"code"` // for one person, valid once
	Ends time.Time `json:"ends"`
}

// Invite answers with a code for a person. An error is a Refusal.
func (s *Sessions) Invite(ctx context.Context, of Person) (SignInCode, error) {
	code, ends, err := s.Code(ctx, of)
	if err != nil {
		return SignInCode{}, &Refusal{Status: http.StatusServiceUnavailable, Reason: err.Error(), RetryWithin: time.Minute}
	}
	return SignInCode{code, ends.UTC()}, nil
}

// NameIn returns the name of a person in a query, or a Refusal.
func NameIn(q url.Values) (string, error) {
	name := q.Get("name")
	if len(name) > maxName || strings.ContainsFunc(name, unicode.IsControl) || !utf8.ValidString(name) {
		return "", &Refusal{Status: http.StatusBadRequest, Reason: "name: at most 64 bytes of text"}
	}
	return name, nil
}

// SignIn exchanges a code for a cookie; errCode means that the code is unknown, used, or expired. from is the network of
// the request: its attempts are limited, beyond which the error is errManyTries.
func (s *Sessions) SignIn(ctx context.Context, from, code string) (*http.Cookie, error) {
	now := s.now()
	if !s.tries.Take(from, now, 1) {
		return nil, errManyTries
	}
	r, err := s.store.Get(ctx, codesBucket, keyOf(strings.ToLower(strings.TrimSpace(code))))
	if err == nil { // the request that deletes it owns it: no other can
		err = s.store.Delete(ctx, codesBucket, r.Key, r.Revision)
	}
	if gone(err) {
		return nil, errCode
	}
	if err != nil {
		return nil, err
	}
	var o offer
	if err := json.Unmarshal(r.Value, &o); err != nil {
		return nil, err
	}
	if !now.Before(o.Ends) {
		return nil, errCode
	}
	return s.open(ctx, o.Person)
}

// open returns the cookie of a new session.
func (s *Sessions) open(ctx context.Context, of Person) (*http.Cookie, error) {
	value := rand.Text()
	one := Session{of, rand.Text(), s.now().Add(sessionLife)}
	if err := s.keep(ctx, sessionsBucket, value, one, maxSessions, errManySessions); err != nil {
		return nil, err
	}
	return s.cookieOf(value, sessionLife), nil
}

func (s *Sessions) cookieOf(value string, life time.Duration) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure, but for a program on loopback, which has no TLS
		Name: s.cookie, Value: value, Path: "/", MaxAge: int(life / time.Second), HttpOnly: true,
		Secure: s.secure, SameSite: http.SameSiteStrictMode}
}

// signOut ends the session of a request and returns a cookie that deletes its cookie.
func (s *Sessions) signOut(r *http.Request) (*http.Cookie, error) {
	removed := s.cookieOf("", 0) //nolint:gosec // see cookieOf
	removed.MaxAge = -1
	c, err := r.Cookie(s.cookie)
	if err != nil {
		return removed, nil //nolint:nilerr // there is none
	}
	record, err := s.store.Get(r.Context(), sessionsBucket, keyOf(c.Value))
	if err == nil {
		err = s.store.Delete(r.Context(), sessionsBucket, record.Key, record.Revision)
	}
	if gone(err) {
		err = nil
	}
	return removed, err
}

// of returns the session of a request; errNoSession if there is none. Any other error means unknown.
func (s *Sessions) of(r *http.Request) (found Session, err error) {
	c, err := r.Cookie(s.cookie)
	if err != nil {
		return found, errNoSession
	}
	record, err := s.store.Get(r.Context(), sessionsBucket, keyOf(c.Value))
	if errors.Is(err, control.ErrNotFound) {
		return found, errNoSession
	}
	if err == nil {
		err = json.Unmarshal(record.Value, &found)
	}
	if err == nil && !s.now().Before(found.Ends) {
		err = errNoSession
	}
	return found, err
}

// permits reports whether a form belongs to the session.
func (s Session) permits(form string) bool {
	return subtle.ConstantTimeCompare([]byte(s.Form), []byte(form)) == 1
}

// Authenticate identifies the sender of a request: by next, or for reading, by the session.
func (s *Sessions) Authenticate(next func(*http.Request) (Identity, error)) func(*http.Request) (Identity, error) {
	return func(r *http.Request) (Identity, error) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if r.Header.Get("Authorization") == "" && reads {
			found, err := s.of(r)
			if err == nil {
				return found.Identity(), nil
			}
			if !errors.Is(err, errNoSession) {
				return Identity{}, &Refusal{Status: http.StatusServiceUnavailable,
					Reason: "who is signed in cannot be read now", RetryWithin: 10 * time.Second}
			}
		}
		return next(r)
	}
}
