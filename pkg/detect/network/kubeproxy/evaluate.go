package kubeproxy

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// proxyHealth is the body of kube-proxy's health answer.
type proxyHealth struct {
	LastUpdated  *string `json:"lastUpdated"`
	CurrentTime  string  `json:"currentTime"`
	NodeEligible *bool   `json:"nodeEligible"` // of /healthz only
}

func (seen observation) health() (proxyHealth, bool) {
	var health proxyHealth
	err := json.Unmarshal([]byte(seen.body), &health)
	return health, err == nil && health.LastUpdated != nil
}

// isProxy reports whether a kube-proxy answered.
func (seen observation) isProxy() bool {
	_, ok := seen.health()
	return seen.err == nil && ok
}

func (seen observation) evaluate() []finding.Finding {
	health, known := seen.health()
	draining := health.NodeEligible != nil && !*health.NodeEligible
	switch {
	case seen.err != nil:
		return seen.fault("KubeProxyNotAnswering", "does not answer %s: %s", seen.url, checkkit.ErrorText(seen.err))
	case seen.status == http.StatusOK:
		return nil
	case draining && strings.HasSuffix(seen.url, "/healthz"):
		return nil // 503 has two causes here, and the node is being removed anyway
	case known && seen.status == http.StatusServiceUnavailable:
		return seen.fault("KubeProxyNotSyncing", "has not updated the services%s: read its log, and check which "+
			"process holds /run/xtables.lock", health.age())
	}
	return seen.fault("KubeProxyNotAnswering", "answers %s with status %d: %s", seen.url, seen.status,
		checkkit.Sanitize(seen.body, 200))
}

// age renders how long ago the last update was. Both times are kube-proxy's own.
func (p proxyHealth) age() string {
	last, err := parseTime(*p.LastUpdated)
	now, errNow := parseTime(p.CurrentTime)
	if err != nil || errNow != nil || now.Before(last) || last.IsZero() {
		return ""
	}
	return " for " + now.Sub(last).Round(time.Second).String()
}

// parseTime reads RFC 3339, or the format of older kube-proxies: time.Time.String, followed by Go's monotonic reading.
func parseTime(text string) (time.Time, error) {
	if parsed, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return parsed, nil
	}
	text, _, _ = strings.Cut(text, " m=")
	return time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", text)
}
