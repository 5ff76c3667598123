package host

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
)

// Setting names a field of Paths that is read from the configuration of kubelet or of the runtime.
type Setting string

// The settings that can be in doubt.
const (
	KubeletRoot     Setting = "kubeletRoot"
	Kubeconfig      Setting = "kubeconfig"
	KubeletHealthz  Setting = "kubeletHealthz"
	KubeletAPI      Setting = "kubeletAPI"
	KubeletCAFile   Setting = "kubeletCAFile"
	StaticPods      Setting = "staticPods"
	PodLogs         Setting = "podLogs"
	CgroupRoot      Setting = "cgroupRoot"
	CRISocket       Setting = "criSocket"
	ContainerdRoot  Setting = "containerdRoot"
	ContainerdState Setting = "containerdState"
	CNIConfDir      Setting = "cniConfDir"
	CNIBinDirs      Setting = "cniBinDirs"
	NetnsDirs       Setting = "netnsDirs"
)

// Doubts are the settings that the agent could not determine, each with the reason: a file that users other than root
// can write, or one that cannot be read or parsed. Paths then has the default, which proves nothing: code that uses
// such a setting calls Of first. A setting known to be absent is not in doubt.
type Doubts map[Setting]error

// Add records a doubt. The first reason stays. On a nil map Add has no effect: then the settings do not matter.
func (d Doubts) Add(why error, settings ...Setting) {
	if d == nil {
		return
	}
	for _, s := range settings {
		if d[s] == nil {
			d[s] = why
		}
	}
}

// Of returns why one of the settings is in doubt; nil if none is. Without settings it checks all.
func (d Doubts) Of(settings ...Setting) error {
	if len(settings) == 0 {
		settings = slices.Sorted(maps.Keys(d))
	}
	var reasons []error
	for _, s := range settings {
		why := d[s]
		if why != nil && !slices.ContainsFunc(reasons, func(r error) bool { return r.Error() == why.Error() }) {
			reasons = append(reasons, why)
		}
	}
	if len(reasons) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", hosterr.ErrDoubt, errors.Join(reasons...))
}

// Equal reports whether both have the same reasons.
func (d Doubts) Equal(other Doubts) bool {
	return maps.EqualFunc(d, other, func(a, b error) bool { return a.Error() == b.Error() })
}

// Refuse makes the clients whose address is in doubt fail with the reason: the server at a default address may be
// another's, and silence there proves nothing.
func (h *Host) Refuse() {
	refuse(&h.Kubelet.Healthz, h.Doubts.Of(KubeletHealthz))
	api := h.Doubts.Of(KubeletAPI)
	refuse(&h.Kubelet.Pods, api)
	refuse(&h.Kubelet.RecentPods, api)
	refuse(&h.Kubelet.Metric, api)
	refuse(&h.Kubelet.Scrape, api)
	refuse(&h.Kubelet.RecentScrape, api)
	refuse(&h.Kubelet.ServingCertificate, api)
	refuse(&h.Kubelet.PodNames, h.Doubts.Of(KubeletRoot))
	for _, clients := range []any{&h.Runtime, &h.Containerd} {
		fields := reflect.ValueOf(clients).Elem()
		for i := range fields.NumField() {
			refuse(fields.Field(i).Addr().Interface(), h.Doubts.Of(CRISocket))
		}
	}
}

// refuse replaces the function that client points to with one that returns why; nil stays nil.
func refuse(client any, why error) {
	function := reflect.ValueOf(client).Elem()
	if why == nil || function.IsNil() {
		return
	}
	kind := function.Type()
	function.Set(reflect.MakeFunc(kind, func([]reflect.Value) []reflect.Value {
		results := make([]reflect.Value, kind.NumOut())
		for i := range results {
			results[i] = reflect.Zero(kind.Out(i))
		}
		results[len(results)-1] = reflect.ValueOf(why)
		return results
	}))
}
