package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/internal/atomicfile"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/secretfile"
)

// Identity is the authenticated sender of a request.
type Identity struct {
	Name  string
	By    string // how it was proven: "local token", "token", "certificate", "review"
	Reads bool   // everything that the center stores, without asking the Authorizer
	Any   bool   // may send for any source

	Cluster string // which vouched for it
	Node    string // the only node that it may send for; empty: none

	Detector  string // the only one that it may send for; empty: the agent and all detectors of its node
	EveryNode bool   // of the cluster: Node is the one that it runs on
	User      *User  // of the cluster, with rights known to the Authorizer; nil: a node, or the center itself

	Unreviewed bool // the cluster's apiserver could not be asked: only the signature was checked
}

// User is a user of a cluster, as its apiserver reports it.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Authorizer decides who may read, and who may change subscriptions.
type Authorizer interface {
	// Authorize returns nil if somebody may use a verb (get, post, delete) on a path of the interface, without its
	// parameters (/v1/nodes, also for one node); otherwise a Refusal.
	Authorize(ctx context.Context, who Identity, verb, path string) error
}

// Refusal says why a request is refused. Any other error of Authenticate is answered with 401.
type Refusal struct {
	Status      int
	Reason      string
	RetryWithin time.Duration // 0: a retry is useless until the configuration changes
}

func (r *Refusal) Error() string { return r.Reason }

// answer writes the refusal.
func (r *Refusal) answer(w http.ResponseWriter) {
	if r.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if r.RetryWithin > 0 {
		refuseForNow(w, r.Status, r.Reason, r.RetryWithin)
		return
	}
	refuse(w, r.Status, quote(r), nil)
}

// refusalOf returns the refusal in an error.
func refusalOf(err error, status int) *Refusal {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Status: status, Reason: err.Error()}
}

// identified identifies the sender of a request, counts it, and refuses senders that send too many.
func (s *Server) identified(r *http.Request) (Identity, *Refusal) {
	who, err := s.Authenticate(r)
	if err != nil {
		refusal := refusalOf(err, http.StatusUnauthorized)
		s.metrics.identities.WithLabelValues("", "", strconv.Itoa(refusal.Status)).Inc()
		return who, refusal
	}
	result := "accepted"
	if who.Unreviewed {
		result = "unreviewed"
	}
	s.metrics.identities.WithLabelValues(who.Cluster, who.By, result).Inc()
	if who.Node != "" && !s.shares.requests.Take(who.key(), s.Now(), 1) {
		s.metrics.limited.WithLabelValues("requests").Inc()
		return who, &Refusal{Status: http.StatusTooManyRequests, Reason: "too many requests of one node",
			RetryWithin: 30 * time.Second}
	}
	return who, nil
}

// permit refuses an identity without a right to a path: the verb of the right is the request's method, in lower case.
// The right to read everything does not include the right to change anything.
func (s *Server) permit(r *http.Request, who Identity, path string) *Refusal {
	verb := strings.ToLower(r.Method)
	if r.Method == http.MethodHead {
		verb = "get"
	}
	switch {
	case who.Any, who.Reads && verb == "get":
		return nil
	case s.Authorizer == nil:
		return &Refusal{Status: http.StatusForbidden, Reason: "this identity may not " + verb + " " + path}
	}
	if err := s.Authorizer.Authorize(r.Context(), who, verb, path); err != nil {
		return refusalOf(err, http.StatusForbidden)
	}
	return nil
}

// maySend reports whether the identity speaks for a source: its node's agent, or a detector beside it.
func (i Identity) maySend(source string) bool {
	cluster, node, detector, ok := event.ReadSource(source)
	return i.Any || ok && i.Node != "" && cluster == i.Cluster && (node == i.Node || i.EveryNode) &&
		(i.Detector == "" || i.Detector == detector)
}

// Token returns the token in a file, and creates the file if it is missing. Only the owner may read the file.
func Token(name string) (string, error) {
	token, err := ReadToken(name)
	if !errors.Is(err, os.ErrNotExist) {
		return token, err
	}
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	token = hex.EncodeToString(random[:])
	return token, atomicfile.WriteData(name, []byte(token+"\n"))
}

// ReadToken reads a token from a file.
func ReadToken(name string) (string, error) {
	if err := secretfile.CheckOwn(name); err != nil {
		return "", err
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if len(token) < 32 {
		return "", fmt.Errorf("%s: no token: it has fewer than 32 characters", name)
	}
	return token, nil
}

// SignInCode is the response to POST /v1/sign-in-codes.
type SignInCode struct {
	Code string    `json:"code"` // for one person, valid once
	Ends time.Time `json:"ends"`
}

// signInCode creates a code that signs a person in to the pages.
func (s *Server) signInCode(w http.ResponseWriter, r *http.Request, who Identity) {
	if !only(w, r.URL.Query(), "name", "role") {
		return
	}
	if !who.Any {
		refuse(w, http.StatusForbidden, "only an administrator invites to the pages", nil)
		return
	}
	name, role := r.URL.Query().Get("name"), cmp.Or(r.URL.Query().Get("role"), "operator")
	if len(name) > 64 || strings.ContainsFunc(name, unicode.IsControl) || !utf8.ValidString(name) {
		refuse(w, http.StatusBadRequest, "name: at most 64 bytes of text", nil)
		return
	}
	if role != "operator" && role != "reader" {
		refuse(w, http.StatusBadRequest, "role: want operator or reader", nil)
		return
	}
	if s.SignIn == nil {
		refuse(w, http.StatusNotFound, "this center has no pages", nil)
		return
	}
	code, ends, err := s.SignIn(r.Context(), cmp.Or(name, who.Name), role == "operator")
	if err != nil {
		refuseForNow(w, http.StatusServiceUnavailable, err.Error(), time.Minute)
		return
	}
	respond(w, http.StatusOK, SignInCode{code, ends.UTC()})
}
