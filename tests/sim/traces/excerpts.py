"""Small workloads in every format that is read, made up for these tests."""

from __future__ import annotations

PHILLY = """job_id,user,vc,submit_s,duration_s,gpus,cpus,mem_gb,gpu_model,status,model,restart_s
7,,red,100,3600.5,4,,,V100,,resnet,5
8,ann,red,160,60,16,,,V100,,bert,6
9,,blue,100,120,0.25,2,4,V100,,dqn,
"""

PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-a,4000,2048,1,500,,LS,Running,50,400,60
pod-b,8000,4096,2,1000,T4|A10,BE,Running,10,30,10
pod-c,1000,512,0,0,,BE,Pending,20,,
"""

NODES = """sn,cpu_milli,memory_mib,gpu,model
node-0,64000,262144,2,T4
node-1,32000,131072,0,
"""

GENERIC = """arrival,duration,gpus,cpus,memory,user,deadline,estimate,priority,queue
0,100,1,2,4g,ann,500,120,0,fast
30,50,0,1,512m,bob,,,5,
"""


def storm(count: int = 120) -> str:
    """A generic trace with bursts, wide jobs and heavy tails, all by arithmetic."""
    lines = ["arrival,duration,gpus,cpus,user,deadline,estimate,priority"]
    for number in range(count):
        arrival = number * 37 % 1800 + number * 5
        duration = 20 + (number * number * 7919) % (3000 if number % 9 else 20_000)
        gpus = (1, 1, 2, 4, 0.5, 8, 1, 16)[number % 8]
        deadline = arrival + duration * 4 if number % 5 == 0 else ""
        user = ("ann", "bob", "cid")[number * number % 3]
        lines.append(f"{arrival},{duration},{gpus},1,{user},{deadline},{duration + 30},{number % 3 * 10}")
    return "\n".join(lines) + "\n"
