package pages

import (
	"net/http"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

// maxActionFaults limits the faults in one action.
const maxActionFaults = 1000

// recordAction records a person's action on a fault, on one node or on all with it: taking over, muting until a time, or a
// comment. It is an event in the journal before it is shown.
func (s *server) recordAction(w http.ResponseWriter, r *http.Request, who web.Session) {
	now := s.Now()
	action := event.Operator{By: who.Name, Text: strings.TrimSpace(r.PostFormValue("text"))}
	var t event.Type
	switch r.PostFormValue("what") {
	case "acknowledge":
		t = event.OperatorAcknowledged
	case "mute":
		t = event.OperatorMuted
		d, err := time.ParseDuration(r.PostFormValue("for"))
		if err != nil || d < 0 {
			s.Message(w, r, http.StatusBadRequest, "Muted for how long? Want a duration, as 4h; 0s: no longer.")
			return
		}
		if d > 0 {
			action.Until = now.Add(d).UTC()
		}
	case "comment":
		t = event.OperatorCommented
		if action.Text == "" {
			s.Message(w, r, http.StatusBadRequest, "A comment without a text says nothing.")
			return
		}
	default:
		s.Message(w, r, http.StatusBadRequest, "This is nothing that can be said of a fault.")
		return
	}
	q := r.PostForm // a field selects by its value, an empty one too: no detector is the agent alone
	selects := api.SelectsFault(q)
	is := func(field, value string) bool { return !q.Has(field) || q.Get(field) == value }
	faults, _ := s.Model.Faults(func(f model.NodeFault) bool {
		return selects(f) && is("kind", f.Subject.Kind) && is("name", f.Subject.Name) && is("uid", f.Subject.UID)
	})
	if q.Get("check") == "" || len(faults) == 0 || len(faults) > maxActionFaults {
		s.Message(w, r, http.StatusConflict, "No fault is like this any more, or over a thousand are. Open the page again.")
		return
	}
	var events []journal.Event
	for _, f := range faults {
		e, err := model.OperatorEvent(t, f, action, now)
		if err != nil {
			s.Message(w, r, http.StatusBadRequest, err.Error())
			return
		}
		events = append(events, e)
	}
	s.store(w, r, who, events...)
}

// store stores what a person has said, and shows the page from which it came.
func (s *server) store(w http.ResponseWriter, r *http.Request, who web.Session, events ...journal.Event) {
	if _, err := s.Journal.Append(r.Context(), events); err != nil {
		if r.Context().Err() == nil { // otherwise the client has gone
			s.Log.Error("store a person's action failed", "who", who.Name, "err", err)
		}
		s.Message(w, r, http.StatusServiceUnavailable, "It cannot be stored now, so it is not said: "+err.Error())
		return
	}
	s.Log.Info("a person acted", "who", who.Name, "what", events[0].Type, "check", events[0].Check, "events", len(events))
	next := web.Next(r.PostFormValue("next"))
	http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // a page of this center: see web.Next
}
