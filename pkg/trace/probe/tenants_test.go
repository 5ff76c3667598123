package probe

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// metrics are lines as a kube-apiserver 1.36 writes them.
func metrics(served, within, rejected int) string {
	return fmt.Sprintf(`# HELP apiserver_flowcontrol_rejected_requests_total [BETA] Number of requests rejected by API Priority and Fairness subsystem
# TYPE apiserver_flowcontrol_rejected_requests_total counter
apiserver_flowcontrol_rejected_requests_total{flow_schema="team",priority_level="team",reason="queue-full"} %[3]d
apiserver_flowcontrol_rejected_requests_total{flow_schema="team",priority_level="team",reason="time-out"} 0
apiserver_flowcontrol_rejected_requests_total{flow_schema="global-default",priority_level="global-default",reason="queue-full"} 7
# HELP apiserver_flowcontrol_request_wait_duration_seconds [BETA] Length of time a request spent waiting in its queue
# TYPE apiserver_flowcontrol_request_wait_duration_seconds histogram
apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="false",flow_schema="team",priority_level="team",le="1"} 3
apiserver_flowcontrol_request_wait_duration_seconds_count{execute="false",flow_schema="team",priority_level="team"} 3
apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="true",flow_schema="team",priority_level="team",le="0.5"} 1
apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="true",flow_schema="team",priority_level="team",le="1"} %[2]d
apiserver_flowcontrol_request_wait_duration_seconds_bucket{execute="true",flow_schema="team",priority_level="team",le="+Inf"} %[1]d
apiserver_flowcontrol_request_wait_duration_seconds_sum{execute="true",flow_schema="team",priority_level="team"} 0.5
apiserver_flowcontrol_request_wait_duration_seconds_count{execute="true",flow_schema="team",priority_level="team"} %[1]d
apiserver_request_total{code="200"} 12345
`, served, within, rejected)
}

// Counted are the requests between two readings, of the wanted FlowSchemas; a restart of an apiserver loses only what it
// had not shown, and one that does not answer, or answers with something else, changes no count.
func TestThrottled(t *testing.T) {
	var body atomic.Value
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body.Load().(string))
	}))
	defer server.Close()
	prober := New(direct{}, nil, slog.New(slog.DiscardHandler))
	r, err := NewTenants([]string{"team"}, prober)
	if err != nil {
		t.Fatal(err)
	}
	r.Online = func() []string { return []string{server.Listener.Addr().String()} }
	for _, step := range []struct {
		text, want string
		status     int
	}{
		{metrics(100, 90, 5), "", 200}, // a beginning
		{metrics(150, 130, 9), "40 14", 200},
		{metrics(150, 130, 9), "", 200},
		{"no such page", "error", 403},
		{"<html>\n" + metrics(170, 150, 9), "20 0", 200}, // lines that are no metrics do no harm
		{`apiserver_flowcontrol_rejected_requests_total{flow_schema="team` + "\n", "error", 200},
		{strings.Repeat("x", maxLine+1), "error", 200},
		{metrics(10, 8, 1), "8 3", 200}, // after a restart
	} {
		body.Store(step.text)
		status = step.status
		got := ""
		if err := r.Round(t.Context(), time.Unix(0, 0)); err != nil {
			got = "error"
		}
		for _, c := range prober.Take() {
			got += fmt.Sprint(c.Good, " ", c.Bad)
			if c.Component != FlowSchemas || c.Instance != "team" {
				t.Errorf("%+v", c)
			}
		}
		if got != step.want {
			t.Errorf("%.40q: %q, want %q", step.text, got, step.want)
		}
	}
	if _, err := NewTenants(make([]string, maxSchemas+1), prober); err == nil {
		t.Error("too many FlowSchemas were taken")
	}
}
