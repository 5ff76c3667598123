package api

import (
	"cmp"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/share"
)

// identified identifies the sender of a request, counts it, and refuses senders that send too many.
func (s *Server) identified(r *http.Request) (web.Identity, *web.Refusal) {
	who, err := s.Authenticate(r)
	if err != nil {
		refusal := web.RefusalOf(err, http.StatusUnauthorized)
		s.metrics.identities.WithLabelValues("", "", label(r, refusal.Status)).Inc()
		return who, refusal
	}
	share.Identified(r)
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

// signInCode creates a code that signs a person in to the pages.
func (s *Server) signInCode(r *http.Request, who web.Identity) (any, error) {
	role := cmp.Or(r.URL.Query().Get("role"), "operator")
	name, wrong := web.NameIn(r.URL.Query())
	switch {
	case !who.Any:
		return nil, refused(http.StatusForbidden, "only an administrator invites to the pages")
	case wrong != nil:
		return nil, wrong
	case role != "operator" && role != "reader":
		return nil, refused(http.StatusBadRequest, "role: want operator or reader")
	case s.SignIn == nil:
		return nil, refused(http.StatusNotFound, "this center has no pages")
	}
	return s.SignIn(r.Context(), web.Person{Name: cmp.Or(name, who.Name), Operator: role == "operator"})
}
