package pages

import (
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
)

type subscriptionsView struct {
	Subscriptions []deliver.Status
	Letters       []deliver.DeadLetter // the newest of them
	More          int
}

// subscriptions lists the webhooks and the newest dead letters. What is done about them is done by the command: it is a
// right of its own.
func (s *server) subscriptions(w http.ResponseWriter, r *http.Request, _ session) {
	var v subscriptionsView
	if s.Deliveries != nil {
		delivers := s.Deliveries()
		if delivers == nil {
			s.message(w, r, http.StatusServiceUnavailable, "Another replica of this center delivers: try again.")
			return
		}
		v.Subscriptions = delivers.List()
		letters, err := delivers.DeadLetters(r.Context(), "")
		if err != nil {
			s.Log.Error("dead letters cannot be read", "err", err)
			s.message(w, r, http.StatusServiceUnavailable, "The dead letters cannot be read now.")
			return
		}
		v.More = max(0, len(letters)-maxRows)
		v.Letters = letters[v.More:]
	}
	s.show(w, r, http.StatusOK, "subscriptions", view{Title: "Subscriptions", JSON: "/v1/subscriptions", Data: v})
}

// seconds is for ago.
func seconds(now time.Time, lag float64) time.Time {
	return now.Add(-time.Duration(lag * float64(time.Second)))
}
