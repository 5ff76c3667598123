package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"testing"
)

// distributions matches the names of Kubernetes distributions in the code's texts.
var distributions = regexp.MustCompile(
	`(?i)\b(k3s|rke2|k0s|microk8s|kubelite|edgecore|kubeedge|bottlerocket|talos|minikube)\b`)

// TestDistributionsAreInOneTable: only the table knows a distribution by name.
func TestDistributionsAreInOneTable(t *testing.T) {
	exempt := map[string]string{
		"internal/host/distro":        "the table",
		"pkg/detect/kernellog/replay": "the programs of logs that people paste",
	}
	for _, s := range sources(t) {
		if _, ok := exempt[s.pkg]; ok || hasPrefix(s.pkg+"/", []string{"test/", "packaging/"}) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if ok && text.Kind == token.STRING && distributions.MatchString(text.Value) {
				t.Errorf("%s names a distribution: %s; it belongs into internal/host/distro", s.fset.Position(text.Pos()),
					text.Value)
			}
			return true
		})
	}
}
