package browser

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"github.com/nodeagent/nodeagent/pkg/web/oidc"
)

// identityProvider runs a third-party identity provider with the center as its client.
func identityProvider(t *testing.T, center string) (issuer string) {
	var provider http.Handler
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		provider.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	storage.RegisterClients(storage.WebClient("center", "s3cret", center+"/login/callback"))
	// Another site than the center's, for a browser: cookies care.
	issuer = strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + "/"
	provider = exampleop.SetupServer(issuer, storage.NewStorage(storage.NewUserStore(issuer)),
		slog.New(slog.NewTextHandler(io.Discard, nil)), false)
	return issuer
}

// A person signs in at a real identity provider, and gets to the wanted page: with and without JavaScript.
func TestSignInAtProvider(t *testing.T) {
	for _, script := range []bool{true, false} {
		t.Run(fmt.Sprintf("script %t", script), func(t *testing.T) { signInAtProvider(t, script) })
	}
}

func signInAtProvider(t *testing.T, script bool) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var provider *oidc.Provider
	address := serveWith(t, func(address string) *oidc.Provider {
		var err error
		provider, err = oidc.New("eventcenter", oidc.Settings{Issuer: identityProvider(t, address), ClientID: "center",
			ClientSecretFile: secret, Address: address, NameClaim: "email",
			People: []string{"test-user@zitadel.ch"}}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		return provider
	})
	ctx := browser(t, script)
	enter := func(user string) chromedp.Tasks {
		return chromedp.Tasks{chromedp.WaitVisible(".button"), chromedp.Click(".button"),
			chromedp.WaitVisible("#username"), chromedp.SendKeys("#username", user),
			chromedp.SendKeys("#password", "verysecure\r")}
	}
	var text, where string
	run(t, ctx, chromedp.Navigate(address+"/faults?severity=fatal"), enter("test-user2"),
		chromedp.WaitVisible(".alert"), chromedp.Text(".alert", &text))
	if !strings.Contains(text, "test-user2@zitadel.ch may not read") {
		t.Errorf("who may not read is told %q", text)
	}
	run(t, ctx, chromedp.Navigate(address+"/faults?severity=fatal"), enter("test-user@localhost"),
		chromedp.WaitVisible(".out"), chromedp.WaitVisible(".filter"), chromedp.Text(".out", &text),
		chromedp.Location(&where))
	if !strings.Contains(text, "test-user@zitadel.ch") || where != address+"/faults?severity=fatal" {
		t.Errorf("signed in as %q, at %s", text, where)
	}
}
