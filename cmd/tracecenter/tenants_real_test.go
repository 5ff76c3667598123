package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/watch"
)

const flowControl = "/apis/flowcontrol.apiserver.k8s.io/v1/"

// closed lets one request of the user "system:node:node-a" through at a time.
const (
	closedLevel = `{"kind":"PriorityLevelConfiguration","apiVersion":"flowcontrol.apiserver.k8s.io/v1","metadata":{"name":"closed"},
 "spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"lendablePercent":0,"borrowingLimitPercent":0,"limitResponse":{"type":"Reject"}}}}`
	closedSchema = `{"kind":"FlowSchema","apiVersion":"flowcontrol.apiserver.k8s.io/v1","metadata":{"name":"closed"},
 "spec":{"matchingPrecedence":100,"priorityLevelConfiguration":{"name":"closed"},"rules":[{"subjects":[{"kind":"User","user":{"name":"system:node:node-a"}}],
 "resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"],"clusterScope":true}]}]}}`
)

// tenants checks that the apiserver takes the chart's objects of tenants, that a tenant's requests use them, and that the
// requests it rejects are counted as throttled.
func (c *cluster) tenants() {
	c.t.Helper()
	c.Create("/api/v1/namespaces", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"red"}}`, nil)
	golden, err := os.ReadFile("../../test/helm/testdata/tracecenter-full.golden.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	for document := range bytes.SplitSeq(golden, []byte("\n---\n")) {
		object, err := yaml.YAMLToJSON(document)
		if err != nil {
			c.t.Fatal(err)
		}
		for kind, path := range map[string]string{"FlowSchema": flowControl + "flowschemas", "PriorityLevelConfiguration": flowControl + "prioritylevelconfigurations"} {
			if bytes.Contains(document, []byte("\nkind: "+kind+"\n")) {
				c.Create(path, string(object), nil)
			}
		}
		if bytes.Contains(document, []byte("\nkind: ResourceQuota\n")) && bytes.Contains(document, []byte("\n  namespace: red\n")) {
			c.Create("/api/v1/namespaces/red/resourcequotas", string(object), nil)
		}
	}
	c.Create(flowControl+"prioritylevelconfigurations", closedLevel, nil)
	c.Create(flowControl+"flowschemas", closedSchema, nil)
	c.Create("/api/v1/namespaces/red/serviceaccounts", `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"dev"}}`, nil)
	var token struct{ Status struct{ Token string } }
	c.Create("/api/v1/namespaces/red/serviceaccounts/dev/token", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{}}`, &token)

	log := slog.New(slog.DiscardHandler)
	client, err := watch.New(c.Kubeconfig("admin", "admin"), "test", log)
	if err != nil {
		c.t.Fatal(err)
	}
	prober := probe.New(client, nil, log)
	reader, err := probe.NewTenants([]string{"closed", "tenant-red"}, prober)
	if err != nil {
		c.t.Fatal(err)
	}
	reader.Online = func() []string { return []string{client.Configured()} }
	own := func() { // flow control takes a moment to know the new objects
		c.await("answered the tenant", func() bool { return c.answers(token.Status.Token, 1)[http.StatusForbidden] == 1 })
	}
	c.await("rejected requests", func() bool { return c.answers("node", 20)[http.StatusTooManyRequests] > 0 })
	own()
	if err := reader.Round(c.t.Context(), time.Now()); err != nil {
		c.t.Fatal(err)
	}
	rejected, all := 0, 0
	c.await("rejected requests again", func() bool {
		rejected, all = rejected+c.answers("node", 20)[http.StatusTooManyRequests], all+20
		return rejected > 0
	})
	own()
	if err := reader.Round(c.t.Context(), time.Now()); err != nil {
		c.t.Fatal(err)
	}
	got := map[string]string{}
	for _, count := range prober.Take() {
		got[count.Instance] = fmt.Sprint(count.Good, " served, ", count.Bad, " throttled")
	}
	if got["closed"] != fmt.Sprint(all-rejected, " served, ", rejected, " throttled") || got["tenant-red"] != "1 served, 0 throttled" {
		c.t.Errorf("%v, of %d requests %d were rejected", got, all, rejected)
	}
}

// answers makes requests at the same time, and counts the statuses of the answers.
func (c *cluster) answers(token string, n int) map[int]int {
	c.t.Helper()
	statuses, counts := make(chan int, n), map[int]int{}
	for range n {
		go func() {
			status, _, err := c.DoAs(token, http.MethodGet, "/api/v1/namespaces/red/pods", nil)
			if err != nil {
				c.t.Error(err)
			}
			statuses <- status
		}()
	}
	for range n {
		counts[<-statuses]++
	}
	return counts
}
