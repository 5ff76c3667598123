package pages

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

const (
	codeLife    = 10 * time.Minute
	sessionLife = 12 * time.Hour
	maxCodes    = 100
	maxSessions = 1000
	cookieName  = "eventcenter-session"
)

// Sessions are the people who are signed in. They end with the process: a code is soon made.
type Sessions struct {
	secure bool // cookies are for TLS alone
	now    func() time.Time
	tries  *rate.Limiter

	mu       sync.Mutex // guards what follows
	codes    map[string]offer
	sessions map[[sha256.Size]byte]session // by the hash of the cookie's value
}

// offer is a code that nobody has used yet.
type offer struct {
	name string
	ends time.Time
}

type session struct {
	name string
	form string // what each form of the session repeats: another site cannot know it
	ends time.Time
}

// NewSessions returns that nobody is signed in. With secure, cookies are sent over TLS alone.
func NewSessions(secure bool, now func() time.Time) *Sessions {
	return &Sessions{secure: secure, now: now, tries: rate.NewLimiter(rate.Every(time.Second), 20),
		codes: map[string]offer{}, sessions: map[[sha256.Size]byte]session{}}
}

var errManyCodes = errors.New("too many codes wait to be used: try again in some minutes")

// Code returns a code with which someone can sign in once, for some minutes, under a name.
func (s *Sessions) Code(name string) (code string, ends time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for code, o := range s.codes {
		if !now.Before(o.ends) {
			delete(s.codes, code)
		}
	}
	if len(s.codes) >= maxCodes {
		return "", time.Time{}, errManyCodes
	}
	code = strings.ToLower(rand.Text()[:12]) // 60 bits, of which twenty can be tried a second
	code = code[:4] + "-" + code[4:8] + "-" + code[8:]
	ends = now.Add(codeLife)
	s.codes[code] = offer{name, ends}
	return code, ends, nil
}

// signIn exchanges a code for a cookie. It reports false for a code that is not known, is used, or has ended.
func (s *Sessions) signIn(code string) (*http.Cookie, bool) {
	if !s.tries.AllowN(s.now(), 1) {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	code = strings.ToLower(strings.TrimSpace(code))
	o, ok := s.codes[code]
	delete(s.codes, code)
	if !ok || !now.Before(o.ends) {
		return nil, false
	}
	return s.begin(o.name, now)
}

// open returns the cookie of a new session. It reports false where too many people are signed in.
func (s *Sessions) open(name string) (*http.Cookie, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begin(name, s.now())
}

// begin is open, with the lock held.
func (s *Sessions) begin(name string, now time.Time) (*http.Cookie, bool) {
	for hash, old := range s.sessions {
		if !now.Before(old.ends) {
			delete(s.sessions, hash)
		}
	}
	if len(s.sessions) >= maxSessions {
		return nil, false
	}
	value := rand.Text()
	s.sessions[sha256.Sum256([]byte(value))] = session{name, rand.Text(), now.Add(sessionLife)}
	return s.cookie(value, sessionLife), true
}

func (s *Sessions) cookie(value string, life time.Duration) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure, but for a center on loopback, which has no TLS
		Name: cookieName, Value: value, Path: "/", MaxAge: int(life / time.Second), HttpOnly: true,
		Secure: s.secure, SameSite: http.SameSiteStrictMode}
}

// signOut ends the session of a request and returns the cookie that removes its cookie.
func (s *Sessions) signOut(r *http.Request) *http.Cookie {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, err := r.Cookie(cookieName); err == nil {
		delete(s.sessions, sha256.Sum256([]byte(c.Value)))
	}
	removed := s.cookie("", 0) //nolint:gosec // see cookie
	removed.MaxAge = -1
	return removed
}

// of returns the session of a request.
func (s *Sessions) of(r *http.Request) (session, bool) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return session{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.sessions[sha256.Sum256([]byte(c.Value))]
	return found, ok && s.now().Before(found.ends)
}

// permits reports whether a form is the session's own.
func (s session) permits(form string) bool {
	return subtle.ConstantTimeCompare([]byte(s.form), []byte(form)) == 1
}

// Authenticate returns who sent a request: whoever next says, or for reading, who is signed in.
func (s *Sessions) Authenticate(next func(*http.Request) (api.Identity, error)) func(*http.Request) (api.Identity, error) {
	return func(r *http.Request) (api.Identity, error) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if r.Header.Get("Authorization") == "" && reads {
			if found, ok := s.of(r); ok {
				return api.Identity{Name: found.name, Reads: true}, nil
			}
		}
		return next(r)
	}
}
