package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/deliver"
	"github.com/nodeagent/nodeagent/pkg/web"
)

type subscriptionsView struct {
	Subscriptions []deliver.Status
	DeadLetters   []deliver.DeadLetter // the newest ones
	More          int
}

// subscriptions lists the webhooks and the newest dead letters. Only the command can change them: that needs a right of
// its own.
func (s *server) subscriptions(w http.ResponseWriter, r *http.Request, who web.Session) {
	var v subscriptionsView
	if s.Deliveries != nil {
		subscriptions, letters, err := s.deliveries(r.Context(), who)
		if err != nil {
			if r.Context().Err() == nil { // otherwise the client has gone
				s.Log.Error("read subscriptions failed", "err", err)
			}
			s.Message(w, r, http.StatusServiceUnavailable, "The subscriptions cannot be read now: try again.")
			return
		}
		v.Subscriptions = subscriptions
		v.More = max(0, len(letters)-maxRows)
		v.DeadLetters = letters[v.More:]
	}
	s.Show(w, r, http.StatusOK, "subscriptions", web.View{Title: "Subscriptions", JSON: "/v1/subscriptions", Data: v})
}

// deliveries returns subscriptions and dead letters, even if another replica delivers.
func (s *server) deliveries(ctx context.Context, who web.Session) ([]deliver.Status, []deliver.DeadLetter, error) {
	if m := s.Deliveries(); m != nil {
		letters, err := m.DeadLetters(ctx, "")
		return m.List(), letters, err
	}
	var list api.SubscriptionList
	var letters api.DeadLetterList
	err := s.fromOther(ctx, who, "/v1/subscriptions", &list)
	if err == nil {
		err = s.fromOther(ctx, who, "/v1/dead-letters", &letters)
	}
	return list.Subscriptions, letters.DeadLetters, err
}

// fromOther asks the delivering replica.
func (s *server) fromOther(ctx context.Context, who web.Session, path string, answer any) error {
	if s.Forward == nil {
		return errors.New("another replica delivers")
	}
	a, err := s.Forward(ctx, api.Forwarded{Method: http.MethodGet, URI: path, Who: deliver.Who{Name: who.Name}})
	if err != nil {
		return err
	}
	if a.Status != http.StatusOK {
		return fmt.Errorf("%s: %d %.200q", path, a.Status, a.Body)
	}
	return json.Unmarshal(a.Body, answer)
}

// seconds converts a lag for ago.
func seconds(now time.Time, lag float64) time.Time {
	return now.Add(-time.Duration(lag * float64(time.Second)))
}
