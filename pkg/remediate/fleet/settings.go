package fleet

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
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

// Problems returns the invalid keys of s, each with the reason.
func (s Settings) Problems() map[string]string {
	problems := map[string]string{}
	if errs := validation.IsDNS1123Label(s.Namespace); s.Namespace != "" && len(errs) > 0 {
		problems["namespace"] = strings.Join(errs, "; ")
	}
	if errs := validation.IsDNS1123Label(s.Medik8s); s.Medik8s != "" && len(errs) > 0 {
		problems["medik8s"] = strings.Join(errs, "; ")
	}
	namespace, name, ok := strings.Cut(s.Kured, "/")
	if errs := append(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name)...); s.Kured != "" &&
		(!ok || len(errs) > 0) {
		problems["kured"] = "must be namespace/name of a DaemonSet"
	}
	if errs := validation.IsQualifiedName(s.Pool); s.Pool != "" && len(errs) > 0 {
		problems["pool"] = strings.Join(errs, "; ")
	}
	if s.Slots < 1 {
		problems["slots"] = "must be at least 1"
	}
	if s.Storm < 1 {
		problems["storm"] = "must be at least 1"
	}
	if s.Pool != "" && s.Isolated == 0 {
		problems["isolated"] = "must be set if fleet.pool is: the agent does not count the nodes of a pool"
	}
	return problems
}
