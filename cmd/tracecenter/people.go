package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/internal/kube/fleet"
	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/pkg/trace/pages"
	"github.com/nodeagent/nodeagent/pkg/web"
	remote "github.com/nodeagent/nodeagent/pkg/web/client"
	"github.com/nodeagent/nodeagent/pkg/web/control/sqlite"
	"github.com/nodeagent/nodeagent/pkg/web/identity"
	"github.com/nodeagent/nodeagent/pkg/web/oidc"
	"github.com/nodeagent/nodeagent/pkg/web/secretfile"
)

// clusterName stands for the cluster in identities: there is only one.
const clusterName = "cluster"

// people adds the access of people and programs to the interface, and the pages. The returned store must be closed.
func (s *work) people(ctx context.Context) (io.Closer, error) {
	token, err := web.Token(remote.TokenFile(s.directory()))
	if err != nil {
		return nil, fmt.Errorf("token: %w", err)
	}
	if s.kubeconfig != "" {
		if err := secretfile.Check(s.kubeconfig); err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	reviewer, err := fleet.New(fleet.Config{Kubeconfig: s.kubeconfig, UserAgent: "tracecenter/" + Version, Log: s.api.Log})
	if err != nil {
		return nil, err
	}
	authority, err := identity.New(identity.Config{Program: "tracecenter", Local: token, Dir: s.directory(), Log: s.api.Log,
		Vouchers: []identity.Voucher{{Cluster: identity.Cluster{Name: clusterName, Readers: true}, Apiserver: reviewer, Node: reviewer.UID}}})
	if err != nil {
		return nil, err
	}
	provider, err := oidc.Open("tracecenter", s.oidc)
	if err != nil {
		return nil, fmt.Errorf("--oidc: %w", err)
	}
	control, err := sqlite.Open(ctx, filepath.Join(s.directory(), "control.db"))
	if err != nil {
		return nil, err
	}
	sessions := web.NewSessions(control, "tracecenter", s.endpoint.Secured(), time.Now)
	authenticate := authority.Authenticate
	var signIn web.SignIn
	if provider != nil {
		authenticate, signIn = provider.Authenticate(authenticate), provider
	}
	s.api.Access, s.api.Authenticate, s.api.SignIn = authority, sessions.Authenticate(authenticate), sessions.Code
	s.api.Pages = pages.New(pages.Config{Server: s.api, Sessions: sessions, Provider: signIn, Version: Version})
	return control, nil
}

func newLogin(o *options) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Print a code that opens the pages in a browser, once",
		Long: `Print the address of the pages, and a code that signs one person in, once, within ten minutes. With the program's own
token the person may read everything; with --token-file, what the token's user may get in the cluster.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var answer api.SignInCode
			return o.call(cmd, http.MethodPost, "/v1/sign-in-codes?name="+url.QueryEscape(name), &answer, func() error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s/login\ncode: %s (for one person, until %s)\n", o.remote().Address(), plain(answer.Code),
					answer.Ends.Local().Format(time.TimeOnly))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the person who signs in")
	return cmd
}
