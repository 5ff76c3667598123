package probe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
)

func TestAsk(t *testing.T) {
	answer, status := "", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.String(); got != "/am/api/v2/alerts?active=true&silenced=false&inhibited=false" {
			t.Error(got)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	levels, err := ParseLevels("critical=Fatal,page=Fatal,warning=Warning")
	if err != nil {
		t.Fatal(err)
	}
	r := &Alerts{Address: server.URL + "/am/", Levels: levels}
	for _, c := range []struct {
		answer string
		want   []health.Alert
	}{
		{`[]`, nil},
		{`[{"labels":{"alertname":"EtcdSlow","severity":"page","instance":"a"}},{"labels":{"alertname":"EtcdSlow","severity":"page","instance":"b"}},
		   {"labels":{"alertname":"Info","severity":"info"}},{"labels":{"alertname":"Disk","severity":"warning"}},{"labels":{}},
		   {"labels":{"alertname":"ClusterUnhealthy","severity":"critical"}}]`, []health.Alert{{Name: "EtcdSlow", Level: health.Fatal}, {Name: "Disk", Level: health.Warning}}},
	} {
		answer = c.answer
		if got, err := r.ask(t.Context()); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v", c.answer, got, err)
		}
	}
	for _, bad := range []string{`{"labels":{}}`, `[{"labels":`, ``} {
		answer = bad
		if got, err := r.ask(t.Context()); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if answer, status = `[]`, http.StatusServiceUnavailable; r.Firing() != nil {
		t.Error("never asked, and alerts fire")
	}
	if _, err := r.ask(t.Context()); err == nil {
		t.Error("503 is no answer")
	}
}

func TestSettings(t *testing.T) {
	for _, text := range []string{"", "critical", "critical=fatal", "=Fatal", "a=Healthy", "a=Fatal,"} {
		if levels, err := ParseLevels(text); err == nil {
			t.Errorf("%q: %v", text, levels)
		}
	}
	for address, valid := range map[string]bool{"http://a:9093": true, "https://a/am": true, "a:9093": false, "http://": false, "http://u:p@a": false, "http://a?x": false} {
		if err := ValidAddress(address); (err == nil) != valid {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Each alert that the project ships about tracecenter is one of its own.
func TestOwn(t *testing.T) {
	rules, err := os.ReadFile("../../../packaging/monitoring/tracecenter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(rules, -1) {
		if !slices.Contains(own, string(found[1])) {
			t.Errorf("%s is not one of its own", found[1])
		}
	}
}
