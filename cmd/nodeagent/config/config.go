// Package config is the agent's configuration: one struct, read strictly, with working defaults. The file contains only
// the differences from them.
package config

import (
	"net"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
	"github.com/nodeagent/nodeagent/pkg/report/condition"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
	"github.com/nodeagent/nodeagent/pkg/report/taint"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "/etc/nodeagent/config.yaml"

// Config contains all settings.
type Config struct {
	NodeName  string           `yaml:"nodeName"` // the Node object of this machine; default: found from kubelet
	StateDir  string           `yaml:"stateDir"` // state that must survive a restart
	Socket    string           `yaml:"socket"`   // socket for "nodeagent status"
	Paths     host.Paths       `yaml:"paths"`    // locations on this node; default: found from kubelet
	Checks    checks.Settings  `yaml:"checks"`
	Inspect   object.Settings  `yaml:"inspect"`
	Remediate release.Settings `yaml:"remediate"`
	Fleet     fleet.Settings   `yaml:"fleet"`
	Repair    repair.Settings  `yaml:"repair"`
	Report    Report           `yaml:"report"`

	Plugins             []plugin.Settings      `yaml:"plugins"`             // checks of the user, as programs
	Rules               []kernellog.CustomRule `yaml:"rules"`               // of the user, for the kernel's log
	NodeProblemDetector npd.Settings           `yaml:"nodeProblemDetector"` // its configuration files, run unchanged

	// Set by flags, never by the file.
	ServiceAccountDir string `yaml:"-"` // credentials of the agent's pod
	ServiceAddress    string `yaml:"-"` // host:port of the apiserver for them; default: from the pod's environment
	FromContainer     bool   `yaml:"-"` // the agent has left its container; its program is not installed on the host
}

// Report configures the reporters.
type Report struct {
	Conditions  Conditions           `yaml:"conditions"`
	ConfigMap   ConfigMap            `yaml:"configMap"`
	Events      Events               `yaml:"events"`
	EventCenter eventcenter.Settings `yaml:"eventCenter"`
	Taint       Taint                `yaml:"taint"`
	Metrics     Metrics              `yaml:"metrics"`
}

// Conditions are the conditions of the Node.
type Conditions struct {
	Enabled bool `yaml:"enabled"`
	// problem (True is bad, as node-problem-detector) or ready (True is good)
	Vocabulary condition.Vocabulary `yaml:"vocabulary"`
	Spread     time.Duration        `yaml:"spread"`  // non-urgent writes are spread at random over it
	Refresh    time.Duration        `yaml:"refresh"` // everything is written again after this
}

// ConfigMap writes the node's conditions to a ConfigMap, with the vocabulary of Conditions.
type ConfigMap struct {
	Enabled   bool   `yaml:"enabled"`
	Namespace string `yaml:"namespace"` // default: that of the agent's pod, or "nodeagent"
}

// Events are Kubernetes Events on the Node.
type Events struct {
	Enabled bool          `yaml:"enabled"`
	Burst   int           `yaml:"burst"` // events of one reason at once
	Every   time.Duration `yaml:"every"` // then one more event each
}

// Taint keeps new pods off the node while a fatal fault is believed.
type Taint struct {
	Mode   taint.Mode    `yaml:"mode"`   // off, dry-run or on
	Key    string        `yaml:"key"`    // of the taint; its value is the reason of the oldest fault
	Hold   time.Duration `yaml:"hold"`   // removed after this long without a fault
	Prefer []string      `yaml:"prefer"` // checks whose faults taint with PreferNoSchedule instead of NoSchedule
}

// Validate returns the invalid settings of t.
func (t Taint) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Check("mode", slices.Contains([]taint.Mode{taint.Off, taint.DryRun, taint.On}, t.Mode), "must be off, dry-run or on")
	errs := validation.IsQualifiedName(t.Key)
	wrong.Check("key", len(errs) == 0, "%s", strings.Join(errs, "; "))
	wrong.Check("hold", t.Hold >= 0 && t.Hold <= 24*time.Hour, "must be between 0 and 24h")
	return wrong.OrNil()
}

// Metrics is the Prometheus endpoint.
type Metrics struct {
	Enabled bool   `yaml:"enabled"`
	Listen  string `yaml:"listen"` // host:port on the loopback interface
}

// Default returns the configuration of a new installation.
func Default() Config {
	return Config{
		StateDir:  "/var/lib/nodeagent",
		Socket:    "/run/nodeagent/nodeagent.sock",
		Checks:    checks.DefaultSettings(),
		Inspect:   object.DefaultSettings(),
		Remediate: release.Defaults(),
		Fleet:     fleet.Defaults(),
		Repair:    repair.Defaults(),
		Report: Report{
			Conditions: Conditions{Enabled: true, Vocabulary: condition.Problem, Spread: condition.DefaultSpread,
				Refresh: condition.DefaultRefresh},
			Events:      Events{Enabled: true, Burst: 10, Every: time.Minute},
			EventCenter: eventcenter.Settings{Mode: "batch", Endpoints: []string{}},
			Taint: Taint{Mode: taint.Off, Key: taint.DefaultKey, Hold: taint.DefaultHold,
				Prefer: []string{"critical-daemonsets", "csi-registration"}},
			Metrics: Metrics{Enabled: true, Listen: "127.0.0.1:10680"},
		},
		Plugins: []plugin.Settings{}, Rules: []kernellog.CustomRule{}, NodeProblemDetector: npd.DefaultSettings(),
	}
}

// Ignored returns the settings that earlier releases had, and why they were removed.
func (c Config) Ignored() []string {
	ignored := slices.Clone(c.Checks.Ignored)
	if c.NodeProblemDetector.SystemStats != nil {
		ignored = append(ignored, "nodeProblemDetector.systemStats is ignored: this setting was removed: node_exporter "+
			"serves the metrics of system stats monitors")
	}
	return ignored
}

// YAML returns c as a configuration file.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c) }

// Validate returns the invalid settings of m: metrics are for this node only.
func (m Metrics) Validate() error {
	host, _, err := net.SplitHostPort(m.Listen)
	wrong := setting.Mistakes{}
	wrong.Check("listen", err == nil && net.ParseIP(host).IsLoopback(),
		"must be address:port of the loopback interface, such as 127.0.0.1:10680")
	return wrong.OrNil()
}

// Validate returns the invalid settings of c.
func (c Conditions) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Check("vocabulary", c.Vocabulary == condition.Problem || c.Vocabulary == condition.Ready, "must be %s or %s",
		condition.Problem, condition.Ready)
	return wrong.OrNil()
}
