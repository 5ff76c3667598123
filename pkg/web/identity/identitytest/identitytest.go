// Package identitytest gives tests an identity.
package identitytest

import (
	"net/http"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/web"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
)

// Administrator authenticates by one token, which may not be empty, as a center without clusters does.
func Administrator(t testing.TB, token string) func(*http.Request) (web.Identity, error) {
	t.Helper()
	a, err := identity.New(identity.Config{Local: token})
	if err != nil {
		t.Fatal(err)
	}
	return a.Authenticate
}
