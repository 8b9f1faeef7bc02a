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

// rendering is an overlay, with another component if there is one, and the values
// with which the chart makes the same.
type rendering struct{ overlay, component, namespace, values string }

var renderings = []rendering{
	{"dev", "", "starfish-dev", "values-dev.yaml"},
	{"services", "", "starfish-dev", "values-dev.yaml --set workload=services"},
	{"production", "", "starfish", "values-production.yaml"},
	{"dev", "external-etcd", "starfish-dev", "values-dev.yaml --set etcd.enabled=false --set etcd.endpoints=http://etcd.etcd:2379"},
}

func (r rendering) String() string { return strings.TrimSuffix(r.overlay+" "+r.component, " ") }

// directory is where the kustomization is.
func (r rendering) directory(t *testing.T, c cluster) string {
	t.Helper()
	if r.component == "" {
		return filepath.Join(c.root, "deploy/kubernetes/overlays", r.overlay)
	}
	dir := filepath.Join(c.root, "build/e2e", r.overlay+"-"+r.component)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	text := "resources: [../../../deploy/kubernetes/overlays/" + r.overlay + "]\ncomponents: [../../../deploy/kubernetes/components/" + r.component + "]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	return dir
}

// The chart makes the objects that kustomize makes, field by field, but for the
// namespace, which helm makes itself.
func Test6aChartIsKustomize(t *testing.T) {
	c := connect(t)
	for _, r := range renderings {
		text, err := run("", "kubectl", "kustomize", r.directory(t, c))
		require.NoError(t, err)
		want := objects(t, text)
		delete(want, "Namespace/"+r.namespace)
		chart := filepath.Join(c.root, "deploy/helm/starfish")
		text, err = run("", "helm", append([]string{"template", "starfish", chart, "-n", r.namespace, "-f"},
			strings.Fields(chart+"/"+r.values)...)...)
		require.NoError(t, err)
		got := objects(t, text)
		for id, o := range want {
			require.Equal(t, o, got[id], "%s of %s", id, r)
		}
		require.Len(t, got, len(want), r.String())
		t.Logf("         %s: %d objects, the same", r, len(got))
	}
	_, err := run("", "helm", "lint", filepath.Join(c.root, "deploy/helm/starfish"), "-f", filepath.Join(c.root, "deploy/helm/starfish/values-dev.yaml"))
	require.NoError(t, err)
}

// jobSet is what the JobSet of the examples uses of its kind (jobset.x-k8s.io), and
// nothing else: its own schema is in no module that can be had. The Jobs inside are
// checked as Jobs.
const jobSet = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: jobsets.jobset.x-k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: jobset.x-k8s.io
  names: {kind: JobSet, plural: jobsets}
  scope: Namespaced
  versions:
    - name: v1alpha2
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                network: {type: object, properties: {enableDNSHostnames: {type: boolean}}}
                successPolicy:
                  type: object
                  properties: {operator: {type: string, enum: [All, Any]}, targetReplicatedJobs: {type: array, items: {type: string}}}
                failurePolicy: {type: object, properties: {maxRestarts: {type: integer}}}
                replicatedJobs:
                  type: array
                  items:
                    type: object
                    required: [name, template]
                    properties:
                      name: {type: string}
                      replicas: {type: integer}
                      template: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

// learn teaches the API server the kinds of others that the manifests use, from the
// schemas that they publish.
func (c cluster) learn(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(os.Getenv("BIN"), "crds", "*", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "build-tools gets them")
	for _, file := range files {
		_, err := run("", "kubectl", "apply", "--server-side", "-f", file)
		require.NoError(t, err)
	}
	c.apply(t, jobSet)
	eventually(t, "the API server knows the kinds", func() (bool, string) {
		out, err := c.try("get", "scaledobjects,jobsets,servicemonitors,localqueues,clusterqueues,resourceflavors")
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
		dry("overlay "+r.String(), "-k", r.directory(t, c))
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
