package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/event"
	report "github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/messages"
	"github.com/nodeagent/nodeagent/pkg/trace/nodefault"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/web"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
)

// openAccess lets everybody read everything.
type openAccess struct{}

func (openAccess) Authenticate(*http.Request) (web.Identity, error)              { return web.Identity{}, nil }
func (openAccess) Authorize(context.Context, web.Identity, string, string) error { return nil }
func (openAccess) AuthorizeResource(context.Context, web.Identity, string, string, string) error {
	return nil
}

// The list of an owner has the nodes of a real event center's list, and those on which the owner's pods missed for a reason of the node in the
// last hour; not if they are too many; and it remains without the event center.
func TestAvoid(t *testing.T) {
	center, token := openCenter(t)
	log, now := slog.New(slog.DiscardHandler), time.Now()
	sender := messages.NewSender(center, "prod", log)
	go repeat(t, sender.Send)
	fault := nodefault.Fault{Node: "node-1", Kind: nodefault.SandboxFails, Misses: 4, Acts: 9, Last: now, Since: now}
	if err := sender.Report([]nodefault.Fault{fault}, nil, now); err != nil {
		t.Fatal(err)
	}
	for i := range 9 { // that of the event center is not a storm
		seen := fault
		seen.Node = fmt.Sprint("node-", i+2)
		if err := sender.Report([]nodefault.Fault{seen}, []nodefault.Fault{seen}, now); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, "sent", sender.Idle)
	kept, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "data"), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	follower := follow.New(follow.Config{Promised: time.Minute})
	for i := range 20 {
		follower.Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}, false, now)
	}
	batch := follow.Batch{}
	for i, miss := range []struct {
		owner, node string
		class       reason.Class
		reason      reason.Reason
		ago         time.Duration
	}{
		{"uid-1", "node-2", reason.System, "MountFailed", time.Minute}, {"uid-1", "node-2", reason.System, "SandboxFailed", 3 * time.Minute},
		{"uid-1", "node-2", reason.System, "MountFailed", 4 * time.Minute}, {"uid-1", "node-1", reason.System, "SandboxTimeout", time.Minute},
		{"uid-1", "node-3", reason.User, "ImagePullFailed", time.Minute}, {"uid-1", "node-4", reason.System, "ControlPlaneSlow", time.Minute},
		{"uid-1", "node-5", reason.System, "SandboxFailed", 61 * time.Minute}, {"uid-10", "node-6", reason.System, "SandboxFailed", time.Minute},
		{"storm", "node-1", reason.System, "SandboxFailed", time.Minute}, {"storm", "node-2", reason.System, "SandboxFailed", time.Minute},
		{"storm", "node-3", reason.System, "SandboxFailed", time.Minute}, {"storm", "node-4", reason.System, "SandboxFailed", time.Minute},
		{"storm", "node-5", reason.System, "SandboxFailed", time.Minute},
	} {
		a := judged(fmt.Sprint("p", i), miss.node, miss.class, miss.reason, now.Add(-miss.ago))
		a.Timeline.OwnerUID = miss.owner
		batch.Judged = append(batch.Judged, a)
	}
	if err := kept.Save(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	away := messages.NewSender(&remote.Client{Server: "http://127.0.0.1:1", Token: token}, "prod", log)
	for _, test := range []struct {
		owner  string
		sender *messages.Sender
		want   string
	}{
		{"uid-1", sender, "node-1: pod-delivery/SandboxFailsOnNode owner/SandboxTimeout; node-2: owner/MountFailed owner/SandboxFailed"},
		{"nobody", sender, "node-1: pod-delivery/SandboxFailsOnNode"},
		{"storm", sender, "storm node-1: pod-delivery/SandboxFailsOnNode"},
		{"uid-1", away, "without (the event center does not answer) node-1: owner/SandboxTimeout; node-2: owner/MountFailed owner/SandboxFailed"},
		{"uid-1", nil, "without (there is no event center) node-1: owner/SandboxTimeout; node-2: owner/MountFailed owner/SandboxFailed"},
		{"%25", sender, "400"}, {"", sender, "400"}, {strings.Repeat("a", 65), sender, "400"},
	} {
		server := &api.Server{Follower: follower, Store: kept, Prober: probe.New(nil, follower, log), Log: log, Now: func() time.Time { return now },
			Sender: test.sender, Access: openAccess{}, Authenticate: openAccess{}.Authenticate}
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/avoid?owner="+test.owner, nil))
		if got := avoided(t, answer); got != test.want {
			t.Errorf("%s: %s,\nwant %s", test.owner, got, test.want)
		}
	}
}

func avoided(t *testing.T, answer *httptest.ResponseRecorder) (text string) {
	t.Helper()
	if answer.Code != http.StatusOK {
		return fmt.Sprint(answer.Code)
	}
	var list api.Avoid
	if err := json.Unmarshal(answer.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if list.Storm {
		text += "storm "
	}
	if list.Without != "" {
		text += "without (" + list.Without + ") "
	}
	var nodes []string
	for _, n := range list.Nodes {
		line := n.Node + ":"
		for _, r := range n.Reasons {
			line += " " + r.Check + "/" + r.Reason
		}
		nodes = append(nodes, line)
	}
	return text + strings.Join(nodes, "; ")
}

// The weekly report has the availability of the cluster's nodes from a real event center's report, and names the reason if
// that is missing.
func TestReportOfNodes(t *testing.T) {
	center, token := openCenter(t)
	log := slog.New(slog.DiscardHandler)
	agent := report.New(report.Config{Settings: report.Settings{Endpoints: []string{center.Server + "/v1/events"}, Cluster: "prod", TokenFile: token},
		Node: "node-11", Boot: "boot", ReadFile: os.ReadFile})
	go func() { _ = agent.Run(t.Context()) }()
	agent.Evidence(event.Evidence{Act: "creation", UID: "u", Namespace: "default", Name: "web", Began: time.Now()})
	kept, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "data"), 8)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	follower := follow.New(follow.Config{Promised: time.Minute})
	of := func(sender *messages.Sender, week, namespace string) (text string) {
		server := &api.Server{Follower: follower, Store: kept, Prober: probe.New(nil, follower, log), Log: log, Now: time.Now, Sender: sender}
		made, err := server.Report(t.Context(), week, namespace)
		if err != nil {
			t.Fatal(err)
		}
		if made.Center != nil {
			return fmt.Sprintf("%d nodes, %.0f", made.Center.Nodes, made.Center.Available+made.Center.Unavailable+made.Center.Unknown)
		}
		return strings.Join(made.Missing, ", ")
	}
	sender := messages.NewSender(center, "prod", log)
	wait(t, "the node is counted", func() bool { return of(sender, "", "") == "1 nodes, 1" })
	away := messages.NewSender(&remote.Client{Server: "http://127.0.0.1:1", Token: token}, "prod", log)
	for _, test := range []struct {
		sender          *messages.Sender
		week, namespace string
		want            string
	}{
		{sender, "", "team", ""}, // whoever sees one namespace learns of no node
		{sender, "2020-W10", "", "the nodes: the event center has no report of that week"},
		{messages.NewSender(center, "another", log), "", "", "the nodes: the event center's report has none of this cluster"},
		{away, "", "", "the nodes: the event center does not answer"},
		{nil, "", "", ""},
	} {
		if got := of(test.sender, test.week, test.namespace); !strings.Contains(got, test.want) || test.want == "" && strings.Contains(got, "nodes:") {
			t.Errorf("week %q, namespace %q: %q, want %q", test.week, test.namespace, got, test.want)
		}
	}
}
