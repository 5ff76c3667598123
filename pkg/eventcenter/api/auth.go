package api

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// answerRefusal writes a refusal.
func answerRefusal(w http.ResponseWriter, r *web.Refusal) {
	if r.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if r.RetryWithin > 0 {
		refuseForNow(w, r.Status, r.Reason, r.RetryWithin)
		return
	}
	refuse(w, r.Status, quote(r), nil)
}

// identified identifies the sender of a request, counts it, and refuses senders that send too many.
func (s *Server) identified(r *http.Request) (web.Identity, *web.Refusal) {
	who, err := s.Authenticate(r)
	if err != nil {
		refusal := web.RefusalOf(err, http.StatusUnauthorized)
		s.metrics.identities.WithLabelValues("", "", strconv.Itoa(refusal.Status)).Inc()
		return who, refusal
	}
	result := "accepted"
	if who.Unreviewed {
		result = "unreviewed"
	}
	s.metrics.identities.WithLabelValues(who.Cluster, who.By, result).Inc()
	if who.Node != "" && !s.shares.requests.Take(keyOf(who), s.Now(), 1) {
		s.metrics.limited.WithLabelValues("requests").Inc()
		return who, &web.Refusal{Status: http.StatusTooManyRequests, Reason: "too many requests of one node",
			RetryWithin: 30 * time.Second}
	}
	return who, nil
}

// maySend reports whether the identity speaks for a source: its node's agent, or a detector beside it.
func maySend(i web.Identity, source string) bool {
	cluster, node, detector, ok := event.ReadSource(source)
	return i.Any || ok && i.Node != "" && cluster == i.Cluster && (node == i.Node || i.EveryNode) &&
		(i.Detector == "" || i.Detector == detector)
}

// SignInCode is the response to POST /v1/sign-in-codes.
type SignInCode struct {
	Code string    `json:"code"` // for one person, valid once
	Ends time.Time `json:"ends"`
}

// signInCode creates a code that signs a person in to the pages.
func (s *Server) signInCode(w http.ResponseWriter, r *http.Request, who web.Identity) {
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
	code, ends, err := s.SignIn(r.Context(), web.Person{Name: cmp.Or(name, who.Name), Operator: role == "operator"})
	if err != nil {
		refuseForNow(w, http.StatusServiceUnavailable, err.Error(), time.Minute)
		return
	}
	respond(w, http.StatusOK, SignInCode{code, ends.UTC()})
}
