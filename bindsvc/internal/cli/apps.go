package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/homenode/homenode/bindsvc/api"
)

func (c *console) appsCommand() *cobra.Command {
	parent := &cobra.Command{
		Use:   "apps",
		Short: "Add clients of the open API, and rotate their secrets",
		Long: "An app signs its requests with a secret, which the service makes no copy of that anybody can\nread: it is shown once, when it is made. To rotate it without an interruption: rotate, have\n" +
			"the client use the new one, retire the old one. Without a subcommand the apps are listed.",
		Example: "  homenode apps add partner --name 'Partner Ltd.' --service ai\n  homenode apps rotate partner\n  homenode apps retire partner",
		Args:    cobra.NoArgs,
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, _ []string) (answer, error) {
			return listPolicies(ctx, gateway, api.KindApps, nil)
		}),
	}
	parent.AddCommand(c.addAppCommand(), c.rotateAppCommand(), c.retireAppCommand())
	return parent
}

// newSecret is a secret of 256 random bits, with an id that tells when it was made and
// that no other made in the same second has.
func newSecret(now time.Time) api.AppSecret {
	var random [32 + 4]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand since Go 1.24)
	value := base64.RawURLEncoding.EncodeToString(random[:32])
	id := now.UTC().Format("20060102-150405-") + hex.EncodeToString(random[32:])
	return api.AppSecret{ID: &id, Value: &value}
}

// secretAnswer shows a secret that nobody can be shown again.
func secretAnswer(clientID string, secret api.AppSecret) answer {
	return answer{
		data:  map[string]string{"clientId": clientID, "secretId": *secret.ID, "secret": *secret.Value},
		lines: []string{*secret.Value},
		note:  fmt.Sprintf("this is the secret %s of %s; it is shown only now", *secret.ID, clientID),
	}
}

func (c *console) addAppCommand() *cobra.Command {
	var app api.AppPolicy
	var services []string
	cmd := &cobra.Command{
		Use:     "add CLIENT-ID",
		Short:   "Add an app, and show its secret once",
		Long:    "Add an app with a new random secret, which is written to standard output and never shown\nagain.",
		Example: "  homenode apps add partner --name 'Partner Ltd.' --service ai > partner.secret",
		Args:    ids("CLIENT-ID"),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			_, err := answered(gateway.GetPolicyWithResponse(ctx, api.KindApps, args[0]))
			var missing *refusal
			switch {
			case err == nil:
				return answer{}, fmt.Errorf("there is an app %s; for a new secret: homenode apps rotate %s", args[0], args[0])
			case !errors.As(err, &missing) || missing.status != http.StatusNotFound || missing.message == "":
				return answer{}, err
			}
			secret := newSecret(time.Now())
			app.Services, app.Secrets = list(services), []api.AppSecret{secret}
			if _, err := setPolicy(ctx, gateway, api.KindApps, args[0], nil, app); err != nil {
				return answer{}, err
			}
			return secretAnswer(args[0], secret), nil
		}),
	}
	c.servicesFlag(cmd, &services, "service that it may call (default all); may be given several times")
	optionalText(cmd.Flags(), &app.Name, "name", "name", "name for people")
	optionalText(cmd.Flags(), &app.Remark, "remark", "text", "text for the next administrator")
	return cmd
}

func (c *console) rotateAppCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "rotate CLIENT-ID",
		Short:             "Give an app a second secret, and show it once",
		Long:              "Give an app a new secret, which is written to standard output and never shown again. The one\nthat it has stays good until homenode apps retire.",
		Example:           "  homenode apps rotate partner > partner.secret",
		Args:              ids("CLIENT-ID"),
		ValidArgsFunction: first(c.completeApps),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			app, etag, err := appOf(ctx, gateway, args[0])
			if err != nil {
				return answer{}, err
			}
			if len(app.Secrets) > 1 {
				return answer{}, fmt.Errorf("%s has two secrets already; take the old one away first: homenode apps retire %s", args[0], args[0])
			}
			secret := newSecret(time.Now())
			app.Secrets = append(app.Secrets, secret)
			if _, err := setPolicy(ctx, gateway, api.KindApps, args[0], &api.SetPolicyParams{IfMatch: &etag}, app); err != nil {
				return answer{}, err
			}
			return secretAnswer(args[0], secret), nil
		}),
	}
}

func (c *console) retireAppCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "retire CLIENT-ID",
		Short:             "Take the older of an app's two secrets away",
		Example:           "  homenode apps retire partner",
		Args:              ids("CLIENT-ID"),
		ValidArgsFunction: first(c.completeApps),
		RunE: c.ask(func(ctx context.Context, gateway *api.ClientWithResponses, args []string) (answer, error) {
			app, etag, err := appOf(ctx, gateway, args[0])
			if err != nil {
				return answer{}, err
			}
			if len(app.Secrets) < 2 {
				return answer{}, fmt.Errorf("%s has one secret only; to stop it: homenode policies delete apps %s", args[0], args[0])
			}
			slices.SortStableFunc(app.Secrets, func(a, b api.AppSecret) int { return orZero(a.SetAt).Compare(orZero(b.SetAt)) })
			newest := app.Secrets[len(app.Secrets)-1] // of the same second: the one that was added last
			app.Secrets = []api.AppSecret{newest}
			done, err := setPolicy(ctx, gateway, api.KindApps, args[0], &api.SetPolicyParams{IfMatch: &etag}, app)
			done.lines = []string{"only the secret " + orNone(newest.ID) + " of " + args[0] + " is good now"}
			return done, err
		}),
	}
}

// appOf reads an app as it is: its secrets stay as they are where they are given back.
func appOf(ctx context.Context, gateway *api.ClientWithResponses, id string) (app api.AppPolicy, etag string, err error) {
	found, err := answered(gateway.GetPolicyWithResponse(ctx, api.KindApps, id))
	if err != nil {
		return app, "", err
	}
	return app, found.Data.Etag, json.Unmarshal(found.Data.Body, &app)
}
