package messages

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/web/client"
)

// An event center that does not let tracecenter speak for the cluster still gets the events about nodes. Events wait in bounded
// number, and leave room for faults.
func TestForbiddenEvents(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"/clusters/prod/tracecenter"`) {
			got = append(got, "forbidden")
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		got = append(got, "taken")
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewSender(&client.Client{Server: server.URL, Token: token}, "prod", slog.New(slog.DiscardHandler))
	for _, id := range []string{"1", "2"} {
		e, err := event.OfDetector(event.SLOState, "prod", "", detector, id, minute, event.SLO{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Queue([]cloudevents.Event{e}); err != nil {
			t.Fatal(err)
		}
	}
	fault := nodefault.Fault{Node: "n1", Kind: nodefault.SandboxFails, Last: minute, Since: minute}
	if err := s.Report([]nodefault.Fault{fault}, nil, minute.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(t.Context(), minute); err == nil || strings.Join(got, " ") != "forbidden taken" || s.Idle() {
		t.Errorf("%v, %q", err, got)
	}
	if err := s.Queue(make([]cloudevents.Event, maxWait/2)); err == nil {
		t.Error("there is no bound")
	}
	fault.Node = "n2"
	if err := s.Report([]nodefault.Fault{fault}, nil, minute); err != nil {
		t.Error(err)
	}
}
