package web

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// Identity is the authenticated sender of a request.
type Identity struct {
	Name  string
	By    string // how it was proven: "local token", "token", "certificate", "review"
	Reads bool   // everything that the program stores, without asking the Authorizer
	Any   bool   // may send for any source

	Cluster string // which vouched for it
	Node    string // the only node that it may send for; empty: none

	Detector  string // the only one that it may send for; empty: the agent and all detectors of its node
	EveryNode bool   // of the cluster: Node is the one that it runs on
	User      *User  // of the cluster, with rights known to the Authorizer; nil: a node, or the program itself

	Unreviewed bool // the cluster's apiserver could not be asked: only the signature was checked
}

// User is a user of a cluster, as its apiserver reports it.
type User struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Authorizer decides who may read, and who may change something.
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

	More map[string]any // members of the answer beside the reason
}

func (r *Refusal) Error() string { return r.Reason }

// RefusalOf returns the refusal in an error, or else one with a status; nil for no error.
func RefusalOf(err error, status int) *Refusal {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Status: status, Reason: err.Error()}
}

// Permit refuses an identity without a right to a path: the verb of the right is the request's method, in lower case.
// The right to read everything does not include the right to change anything. a may be nil: only identities that read
// everything may read.
func Permit(r *http.Request, a Authorizer, who Identity, path string) *Refusal {
	verb := strings.ToLower(r.Method)
	if r.Method == http.MethodHead {
		verb = "get"
	}
	switch {
	case who.Any, who.Reads && verb == "get":
		return nil
	case a == nil:
		return &Refusal{Status: http.StatusForbidden, Reason: "this identity may not " + verb + " " + path}
	}
	return RefusalOf(a.Authorize(r.Context(), who, verb, path), http.StatusForbidden)
}

// IsLocal reports whether a Host header names this machine.
func IsLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	address, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && address.IsLoopback()
}

// Bearer returns the bearer token of a request. The name of the scheme may have any case (RFC 9110, section 11.1).
func Bearer(r *http.Request) (token string, given bool) {
	scheme, token, given := strings.Cut(r.Header.Get("Authorization"), " ")
	return token, given && strings.EqualFold(scheme, "Bearer")
}
