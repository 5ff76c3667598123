package api

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/web"
)

// Access decides who may read.
type Access interface {
	web.Authorizer
	// Authenticate identifies the sender of a request.
	Authenticate(r *http.Request) (web.Identity, error)
	// AuthorizeResource returns nil if somebody may use a verb on a resource of the core group in a namespace; empty: in all.
	AuthorizeResource(ctx context.Context, who web.Identity, verb, resource, namespace string) error
}

// identified serves senders who are known.
func (s *Server) identified(next func(http.ResponseWriter, *http.Request, web.Identity)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := s.Access.Authenticate(r)
		if err != nil {
			refuse(w, web.RefusalOf(err, http.StatusUnauthorized))
			return
		}
		next(w, r, who)
	}
}

// MayRead returns nil if somebody may get the pods of a namespace; empty: of all namespaces.
func (s *Server) MayRead(ctx context.Context, who web.Identity, namespace string) error {
	return s.Access.AuthorizeResource(ctx, who, "get", "pods", namespace)
}

// permitted serves senders who are known, and whom may does not refuse.
func (s *Server) permitted(next http.HandlerFunc, may func(*http.Request, web.Identity) error) http.HandlerFunc {
	return s.identified(func(w http.ResponseWriter, r *http.Request, who web.Identity) {
		if refusal := web.RefusalOf(may(r, who), http.StatusForbidden); refusal != nil {
			refuse(w, refusal)
			return
		}
		next(w, r)
	})
}

// ofPods serves those who may get the pods of the namespace in the path or the query; without one, of all namespaces.
func (s *Server) ofPods(next http.HandlerFunc) http.HandlerFunc {
	return s.permitted(next, func(r *http.Request, who web.Identity) error {
		namespace := cmp.Or(r.PathValue("namespace"), r.URL.Query().Get("namespace"))
		if len(namespace) > maxName {
			return badRequest("namespace: too long")
		}
		return s.MayRead(r.Context(), who, namespace)
	})
}

// ofCluster serves those who may get the pods of all namespaces.
func (s *Server) ofCluster(next http.HandlerFunc) http.HandlerFunc {
	return s.permitted(next, func(r *http.Request, who web.Identity) error { return s.MayRead(r.Context(), who, "") })
}

// ofPath serves those who may get the nonResourceURL of the request.
func (s *Server) ofPath(next http.HandlerFunc) http.HandlerFunc {
	return s.permitted(next, func(r *http.Request, who web.Identity) error {
		if refusal := web.Permit(r, s.Access, who, r.URL.Path); refusal != nil {
			return refusal
		}
		return nil
	})
}

func refuse(w http.ResponseWriter, r *web.Refusal) {
	if r.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if r.RetryWithin > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryWithin.Seconds())))
	}
	http.Error(w, r.Reason, r.Status)
}

// SignInCode is the response to POST /v1/sign-in-codes.
type SignInCode struct {
	Code string    `json:"code"` // for one person, valid once
	Ends time.Time `json:"ends"`
}

const maxPerson = 64 // bytes of a person's name

// signInCode creates a code that opens the pages: with the rights of the user who asks, or if the administrator asks, for
// a person who reads everything.
func (s *Server) signInCode(w http.ResponseWriter, r *http.Request, who web.Identity) {
	name := r.URL.Query().Get("name")
	if len(name) > maxPerson || strings.ContainsFunc(name, unicode.IsControl) || !utf8.ValidString(name) {
		http.Error(w, "name: at most 64 bytes of text", http.StatusBadRequest)
		return
	}
	of := web.Person{Name: who.Name, Cluster: who.Cluster, User: who.User}
	switch {
	case s.SignIn == nil:
		http.Error(w, "there are no pages", http.StatusNotFound)
		return
	case who.Any:
		of.Name = cmp.Or(name, who.Name)
	case who.User == nil:
		http.Error(w, "only the administrator and users of the cluster sign in with codes", http.StatusForbidden)
		return
	}
	code, ends, err := s.SignIn(r.Context(), of)
	if err != nil {
		refuse(w, &web.Refusal{Status: http.StatusServiceUnavailable, Reason: err.Error(), RetryWithin: time.Minute})
		return
	}
	s.answer(w, SignInCode{code, ends.UTC()})
}
