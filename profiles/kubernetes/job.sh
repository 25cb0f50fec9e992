#!/bin/sh
# What cluster-generic calls: submit CORES MEGABYTES GPUS MINUTES SCRIPT (prints the job's name), status NAME, cancel NAME...
set -eu
command=$1
shift
case $command in
submit)
    : "${DRAFTLAB_IMAGE:?is the image that jobs run in}" "${DRAFTLAB_CLAIM:?is the volume claim that holds this checkout}"
    : "${DRAFTLAB_MOUNT:?is the folder above this checkout where the claim is mounted}"
    gpu=
    [ "$3" = 0 ] || gpu=", nvidia.com/gpu: $3"
    kubectl create -o name -f - <<JOB
apiVersion: batch/v1
kind: Job
metadata: {generateName: draftlab-, labels: {app: draftlab}}
spec:
  backoffLimit: 0
  activeDeadlineSeconds: $(($4 * 60))
  ttlSecondsAfterFinished: 86400
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: job
          image: "$DRAFTLAB_IMAGE"
          workingDir: "$PWD"
          command: [sh, "$5"]
          resources:
            requests: {cpu: $1, memory: ${2}Mi$gpu}
            limits: {memory: ${2}Mi$gpu}
          volumeMounts:
            - {name: checkout, mountPath: "$DRAFTLAB_MOUNT"}
      volumes:
        - {name: checkout, persistentVolumeClaim: {claimName: "$DRAFTLAB_CLAIM"}}
JOB
    ;;
status)
    found=$(kubectl get "$1" -o 'jsonpath={.status.succeeded}/{.status.failed}')
    case $found in
    1/*) echo success ;;
    */1) echo failed ;;
    *) echo running ;;
    esac
    ;;
cancel)
    kubectl delete --wait=false "$@"
    ;;
esac
