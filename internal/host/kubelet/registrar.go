package kubelet

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RegistrationPath returns the value of a container's argument --kubelet-registration-path, with $(VARIABLES) expanded
// from the container's plain environment.
func RegistrationPath(c *corev1.Container) string {
	words := slices.Concat(c.Command, c.Args)
	for i, word := range words {
		name, value, ok := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if name != "kubelet-registration-path" || !strings.HasPrefix(word, "-") {
			continue
		}
		if !ok && i+1 < len(words) {
			value = words[i+1]
		}
		for _, env := range c.Env {
			value = strings.ReplaceAll(value, "$("+env.Name+")", env.Value)
		}
		return value
	}
	return ""
}
