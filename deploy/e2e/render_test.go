package e2e

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// object is a Kubernetes object as it stands in a file.
type object map[string]any

// at walks along keys; nil where there is nothing.
func (o object) at(keys ...string) any {
	var v any = map[string]any(o)
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func (o object) id() string {
	kind, _ := o["kind"].(string)
	name, _ := o.at("metadata", "name").(string)
	return kind + "/" + name
}

// objects parses a stream of objects.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	all := map[string]object{}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var fields map[string]any
		err := d.Decode(&fields)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err, text)
		if len(fields) == 0 {
			continue
		}
		o := object(fields)
		require.NotContains(t, all, o.id(), "twice")
		all[o.id()] = o
	}
}

// renderings are the overlays and the values with which the chart makes the same.
var renderings = []struct{ overlay, namespace, values string }{
	{"dev", "starfish-dev", "values-dev.yaml"},
	{"services", "starfish-dev", "values-dev.yaml --set workload=services"},
	{"production", "starfish", "values-production.yaml"},
}

// The chart makes the objects that kustomize makes, field by field, but for the
// namespace, which helm makes itself.
func Test6aChartIsKustomize(t *testing.T) {
	c := connect(t)
	for _, r := range renderings {
		text, err := run("", "kubectl", "kustomize", filepath.Join(c.root, "deploy/kubernetes/overlays", r.overlay))
		require.NoError(t, err)
		want := objects(t, text)
		delete(want, "Namespace/"+r.namespace)
		chart := filepath.Join(c.root, "deploy/helm/starfish")
		text, err = run("", "helm", append([]string{"template", "starfish", chart, "-n", r.namespace, "-f"},
			strings.Fields(filepath.Join(chart, r.values))...)...)
		require.NoError(t, err)
		got := objects(t, text)
		for id, o := range want {
			require.Equal(t, o, got[id], "%s of %s", id, r.overlay)
		}
		require.Len(t, got, len(want), r.overlay)
		t.Logf("         %s: %d objects, the same", r.overlay, len(got))
	}
	_, err := run("", "helm", "lint", filepath.Join(c.root, "deploy/helm/starfish"), "-f", filepath.Join(c.root, "deploy/helm/starfish/values-dev.yaml"))
	require.NoError(t, err)
}

// foreign are the kinds of others that the manifests use. Their fields are theirs to
// check; here the API server learns the names.
var foreign = [][3]string{
	{"monitoring.coreos.com", "v1", "ServiceMonitor"}, {"keda.sh", "v1alpha1", "ScaledObject"}, {"jobset.x-k8s.io", "v1alpha2", "JobSet"},
	{"kueue.x-k8s.io", "v1beta1", "ResourceFlavor"}, {"kueue.x-k8s.io", "v1beta1", "ClusterQueue"}, {"kueue.x-k8s.io", "v1beta1", "LocalQueue"},
}

func (c cluster) learn(t *testing.T) {
	t.Helper()
	for _, f := range foreign {
		kind, plural := f[2], strings.ToLower(f[2])+"s"
		scope := "Namespaced"
		if kind == "ResourceFlavor" || kind == "ClusterQueue" {
			scope = "Cluster"
		}
		c.apply(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+plural+"."+f[0]+`, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: `+f[0]+`
  names: {kind: `+kind+`, plural: `+plural+`}
  scope: `+scope+`
  versions: [{name: `+f[1]+`, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
`)
	}
	eventually(t, "the API server knows the kinds", func() (bool, string) {
		out, err := c.try("get", "scaledobjects,jobsets,servicemonitors,localqueues")
		return err == nil, out
	})
}

// A server-side dry run accepts everything, strictly and without a warning, in
// namespaces of the restricted Pod Security level.
func Test6bDryRun(t *testing.T) {
	c := connect(t)
	c.learn(t)
	for _, overlay := range []string{"dev", "production"} {
		text, err := os.ReadFile(filepath.Join(c.root, "deploy/kubernetes/overlays", overlay, "namespace.yaml"))
		require.NoError(t, err)
		_, err = run(string(text), "kubectl", "apply", "-f", "-")
		require.NoError(t, err)
	}
	dry := func(what string, args ...string) {
		t.Helper()
		out, err := run("", "sh", "-c", `exec "$@" 2>&1`, "sh", "kubectl", "apply", "--dry-run=server", "--validate=strict", args[0], args[1])
		require.NoError(t, err, out)
		require.NotContains(t, strings.ToLower(out), "warning", what)
		t.Logf("         %s: %d objects accepted", what, strings.Count(out, "server dry run"))
	}
	c.clear(t) // a Job's template does not change, even in a dry run
	for _, r := range renderings {
		dry("overlay "+r.overlay, "-k", filepath.Join(c.root, "deploy/kubernetes/overlays", r.overlay))
	}
	examples, err := filepath.Glob(filepath.Join(c.root, "deploy/kubernetes/examples/*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, examples)
	for _, file := range examples {
		dry(filepath.Base(file), "-f", file)
	}
	// The Jobs inside the JobSet are checked as what they are.
	jobset, err := os.ReadFile(filepath.Join(c.root, "deploy/kubernetes/examples/jobset.yaml"))
	require.NoError(t, err)
	for _, r := range objects(t, string(jobset))["JobSet/training"].at("spec", "replicatedJobs").([]any) {
		replicated := object(r.(map[string]any))
		job := object{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "x-" + replicated["name"].(string), "namespace": "starfish"},
			"spec": replicated.at("template", "spec")}
		text, err := yaml.Marshal(job)
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "job.yaml")
		require.NoError(t, os.WriteFile(file, text, 0o600))
		dry("JobSet's "+replicated["name"].(string), "-f", file)
	}
}
