package pages

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type subscriptionsView struct {
	api.SubscriptionList
	api.DeadLetterList // the newest ones
	More               int
}

// subscriptions lists the webhooks and the newest dead letters. Only the command can change them: that needs a right of
// its own.
func (s *server) subscriptions(w http.ResponseWriter, r *http.Request, _ web.Session) {
	var v subscriptionsView
	if s.Deliveries != nil {
		err := s.ask(r.Context(), "/v1/subscriptions", &v.SubscriptionList)
		if err == nil {
			err = s.ask(r.Context(), "/v1/dead-letters", &v.DeadLetterList)
		}
		if err != nil {
			if r.Context().Err() == nil { // otherwise the client has gone
				s.Log.Error("read subscriptions failed", "err", err)
			}
			s.Message(w, r, http.StatusServiceUnavailable, "The subscriptions cannot be read now: try again.")
			return
		}
		v.More = max(0, len(v.DeadLetters)-maxRows)
		v.DeadLetters = v.DeadLetters[v.More:]
	}
	s.Show(w, r, http.StatusOK, "subscriptions", web.View{Title: "Subscriptions", JSON: "/v1/subscriptions", Data: v})
}

func (s *server) ask(ctx context.Context, path string, answer any) error {
	text, err := s.Deliveries.Ask(ctx, api.Question{Route: "GET " + path})
	if err != nil {
		return err
	}
	return json.Unmarshal(text, answer)
}

// seconds converts a lag for ago.
func seconds(now time.Time, lag float64) time.Time {
	return now.Add(-time.Duration(lag * float64(time.Second)))
}
