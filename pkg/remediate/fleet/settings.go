package fleet

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodeagent/nodeagent/internal/setting"
)

// Settings are the budgets of the fleet. They must be the same on all nodes of a pool.
type Settings struct {
	Namespace string `yaml:"namespace"` // of the claims; the agent's own with "-claims" after it unless set
	Pool      string `yaml:"pool"`      // key of the Node label that names its pool; unset: the cluster is one pool
	Slots     int    `yaml:"slots"`     // nodes of a pool that are disrupted at once
	Isolated  int    `yaml:"isolated"`  // nodes of a pool that are tainted NoSchedule at once; 0: a tenth of the cluster
	Storm     int    `yaml:"storm"`     // if this many nodes of a pool wait, its slots close

	// Other repairers of nodes: while one works on this node, no repair or taint is made. Unset: not asked.
	Kured   string `yaml:"kured"`   // namespace/name of kured's DaemonSet, which holds its lock
	Medik8s string `yaml:"medik8s"` // namespace of medik8s' maintenance Leases
}

// Defaults are the settings of a new installation.
func Defaults() Settings { return Settings{Slots: 1, Storm: 20} }

// Validate returns the invalid keys of s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	form := func(key, value string, errs []string) {
		wrong.Check(key, value == "" || len(errs) == 0, "%s", strings.Join(errs, "; "))
	}
	form("namespace", s.Namespace, validation.IsDNS1123Label(s.Namespace))
	form("medik8s", s.Medik8s, validation.IsDNS1123Label(s.Medik8s))
	form("pool", s.Pool, validation.IsQualifiedName(s.Pool))
	namespace, name, _ := strings.Cut(s.Kured, "/")
	errs := append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)...)
	wrong.Check("kured", s.Kured == "" || len(errs) == 0, "must be namespace/name of a DaemonSet")
	wrong.Check("slots", s.Slots >= 1, "must be at least 1")
	wrong.Check("storm", s.Storm >= 1, "must be at least 1")
	wrong.Check("isolated", s.Pool == "" || s.Isolated != 0,
		"must be set if fleet.pool is: the agent does not count the nodes of a pool")
	return wrong.OrNil()
}
