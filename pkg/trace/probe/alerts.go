package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/health"
)

const (
	alertLimit = 10 * time.Second
	stale      = time.Minute // alerts of an older answer do not count
	maxAlerts  = 16 << 20    // bytes
)

// own are the alerts of tracecenter itself: one that fires because of the health must not hold it.
var own = []string{"ClusterUnhealthy", "ComponentOffline", "DeliveryBudgetBurnsFast", "DeliveryBudgetBurns", "DeliveryFell",
	"PodsStayTerminating", "TraceCenterBlind"}

// Levels are the levels of health by the value of the label "severity".
type Levels map[string]health.Level

// ParseLevels reads "critical=Fatal,warning=Warning".
func ParseLevels(text string) (Levels, error) {
	levels := Levels{}
	for _, part := range strings.Split(text, ",") {
		severity, level, ok := strings.Cut(part, "=")
		if !ok || severity == "" || level != string(health.Fatal) && level != string(health.Warning) {
			return nil, fmt.Errorf("%q: must be severity=Fatal or severity=Warning, separated by commas", text)
		}
		levels[severity] = health.Level(level)
	}
	return levels, nil
}

// Alerts has the firing alerts of an Alertmanager, as an input of the cluster's health. It is safe for concurrent use.
type Alerts struct {
	Address string // of the Alertmanager, with the path before /api if it has one
	Levels  Levels

	mu     sync.Mutex // guards the fields below
	firing []health.Alert
	asOf   time.Time
}

// ValidAddress returns the error in the address of an Alertmanager.
func ValidAddress(address string) error {
	u, err := url.Parse(address)
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "") {
		err = fmt.Errorf("%q: must be http:// or https:// with a host, without user or query", address)
	}
	return err
}

// Read asks for the alerts. It must be called regularly.
func (r *Alerts) Read(ctx context.Context, _ time.Time) error {
	firing, err := r.ask(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.firing, r.asOf = firing, time.Now()
	return nil
}

// Firing returns the alerts that fire, one of a name and level; none if the Alertmanager did not answer lately.
func (r *Alerts) Firing() []health.Alert {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.asOf) > stale {
		return nil
	}
	return slices.Clone(r.firing)
}

func (r *Alerts) ask(ctx context.Context) (firing []health.Alert, err error) {
	ctx, cancel := context.WithTimeout(ctx, alertLimit)
	defer cancel()
	address := strings.TrimSuffix(r.Address, "/") + "/api/v2/alerts?active=true&silenced=false&inhibited=false"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", address, response.Status)
	}
	var alerts []struct {
		Labels map[string]string `json:"labels"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAlerts)).Decode(&alerts); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	for _, a := range alerts {
		found := health.Alert{Name: a.Labels["alertname"], Level: r.Levels[a.Labels["severity"]]}
		if found.Level != "" && !slices.Contains(own, found.Name) && !slices.Contains(firing, found) {
			firing = append(firing, found)
		}
	}
	return firing, nil
}
