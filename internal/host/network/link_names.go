package network

import (
	"slices"
	"strings"
)

// PluginOfLink returns the network plugin that uses such a name for the host's end of a pod's veth pair; empty for
// other names. It is for display only: a name is no proof. The names of Calico, AWS and Azure contain a digest of the
// pod's namespace and name, so a recreated pod has the same one.
func PluginOfLink(link string) string {
	for _, of := range []struct {
		plugin, prefix string
		digits         []int // hexadecimal, after the prefix
	}{
		{"Calico", "cali", []int{11}}, {"AWS VPC CNI", "eni", []int{11}}, {"Azure CNI", "azv", []int{11}},
		{"Cilium", "lxc", []int{11, 12}}, {"bridge or flannel", "veth", []int{8}},
	} {
		digits, ok := strings.CutPrefix(link, of.prefix)
		if ok && slices.Contains(of.digits, len(digits)) && strings.Trim(digits, "0123456789abcdef") == "" {
			return of.plugin
		}
	}
	return ""
}
